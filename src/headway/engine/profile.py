"""What an engine can tell of the time its steps take, operation by operation, and of the machine's limits."""

from collections.abc import Sequence
from typing import Protocol


class OpProfile(Protocol):
    """All operations of one kind, added up over some steps.

    ``calls`` and ``seconds`` are measured; bytes and operations (a multiply-add is two) are computed from shapes. Bytes
    are those that must be read at least: weights once a step, keys and values once for each request, inputs once.
    """

    @property
    def label(self) -> str: ...
    @property
    def calls(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def operations(self) -> int: ...
    @property
    def int8_operations(self) -> int:
        """Those of ``operations`` whose operands are int8."""
        ...


class MachineLimits(Protocol):
    """Measured rates of all the engine's threads together."""

    @property
    def read_bytes_per_s(self) -> float:
        """From memory."""
        ...

    @property
    def footprint_bytes_per_s(self) -> float:
        """Over as many bytes as the weights have, which a cache may hold."""
        ...

    @property
    def int8_ops_per_s(self) -> float: ...


class Profiler(Protocol):
    """Nothing is timed before ``start`` or after ``stop``. To be used between steps."""

    def start(self) -> None: ...

    def stop(self) -> Sequence[OpProfile]:
        """What was done since ``start``."""
        ...

    def calibrate(self) -> MachineLimits:
        """A measurement of a second; the engine must be idle."""
        ...
