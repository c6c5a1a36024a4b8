"""A running engine for a command, with progress while it loads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.cli.fetching import licence_question
from headway.cli.terminal import TerminalProgress, messages
from headway.config import Config
from headway.core.step_time import StepTimes
from headway.engine.async_engine import AsyncEngine
from headway.engine.build import build_engine
from headway.engine.calibration import calibrated
from headway.engine.generation import StartupReport
from headway.engine.parts import EngineParts
from headway.engine.service_levels import ServiceLevels


@dataclass(frozen=True, slots=True)
class Running:
    engine: AsyncEngine
    report: StartupReport
    step_times: StepTimes | None


def loaded_parts(config: Config) -> EngineParts:
    with TerminalProgress(messages()) as progress:
        return build_engine(config, progress, licence_question(config.model, progress))


@contextmanager
def running_engine(config: Config, holds_objective: bool = False) -> Iterator[Running]:
    """Loads the model and starts the engine; stops it at the end of the block.

    ``holds_objective`` where several share it: step times are then measured first, which takes a moment.
    """
    levels = ServiceLevels(config.objective, config.classes, config.tenants)  # what is wrong with them needs no model
    parts = loaded_parts(config)
    step_times = calibrated(parts.executor) if holds_objective else None
    engine = AsyncEngine(parts, config.for_engine(), levels, step_times)
    try:
        yield Running(engine, parts.report, step_times)
    finally:
        engine.stop()
