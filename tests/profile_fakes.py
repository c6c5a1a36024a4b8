"""A profiler without a model, and values to hand it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fakes import FakeExecutor


@dataclass(frozen=True)
class Op:
    label: str
    calls: int
    seconds: float
    bytes_read: int
    operations: int = 0
    int8_operations: int = 0


@dataclass(frozen=True)
class Limits:
    read_bytes_per_s: float = 10e9
    footprint_bytes_per_s: float = 20e9
    int8_ops_per_s: float = 1e12


QKV = Op("qkv", 60, 0.2, 2_000_000_000, 50_000_000_000, 50_000_000_000)


class FakeProfiler:
    """Keeps how many steps had run when it was called."""

    def __init__(self, executor: FakeExecutor) -> None:
        self.executor = executor
        self.steps_at: list[int] = []

    def start(self) -> None:
        self.steps_at.append(len(self.executor.batches))

    def stop(self) -> Sequence[Op]:
        self.steps_at.append(len(self.executor.batches))
        return [QKV]

    def calibrate(self) -> Limits:
        return Limits()
