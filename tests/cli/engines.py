"""Commands over a fake engine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

from fake_engine import FakeEngine
from headway.config import Config
from headway.engine.generation import StartupReport

REPORT = StartupReport(
    weights_bytes=98_400_000,
    workspace_bytes=5_000_000,
    kv_bytes=1 << 30,
    num_blocks=2048,
    block_size=16,
    max_context=512,
    threads=2,
    cores=2,
    is_pinned=False,
    isa="avx512",
    load_s=1.25,
)


def loading_module(engine: FakeEngine) -> ModuleType:
    """Stands in for ``headway.cli.loading``."""
    module = ModuleType("headway.cli.loading")

    @contextmanager
    def running_engine(config: Config) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(engine=engine, report=REPORT)

    module.running_engine = running_engine  # type: ignore[attr-defined]
    return module


def install(engine: FakeEngine) -> None:
    sys.modules["headway.cli.loading"] = loading_module(engine)
