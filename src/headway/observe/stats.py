"""The engine's counters at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Taken between two steps, so that it adds up: admitted = sum of finished + running + waiting.

    ``num_steps`` only grows; a live engine that has work advances it. ``fault`` says why the engine has stopped, if it
    has. ``finished`` counts by finish reason, ``kv_blocks`` by state (used, cached, free).
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_admitted: int = 0
    num_preemptions: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    kv_blocks: Mapping[str, int] = field(default_factory=dict)
    fault: str | None = None
