"""A running engine for a command, with progress while it loads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.cli.fetching import licence_question
from headway.cli.terminal import TerminalProgress, messages
from headway.config import Config
from headway.engine.async_engine import AsyncEngine
from headway.engine.build import build_engine
from headway.engine.generation import StartupReport


@dataclass(frozen=True, slots=True)
class Running:
    engine: AsyncEngine
    report: StartupReport


@contextmanager
def running_engine(config: Config) -> Iterator[Running]:
    """Loads the model and starts the engine; stops it at the end of the block."""
    with TerminalProgress(messages()) as progress:
        parts = build_engine(config, progress, licence_question(config.model, progress))
    engine = AsyncEngine(parts, config.scheduler, config.server.limits.max_waiting_requests)
    try:
        yield Running(engine, parts.report)
    finally:
        engine.stop()
