"""The engine's counters at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.observe.histogram import HistogramCounts

# Upper bounds in seconds.
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Taken between two steps, so that it adds up: admitted = sum of finished + running + waiting.

    ``num_steps`` only grows; a live engine that has work advances it. ``fault`` says why the engine has stopped, if it
    has. ``finished`` counts by finish reason, ``kv_blocks`` by state (used, cached, free). ``queue_seconds`` are from
    admission to the first step, ``step_seconds`` what the device spent on a step. ``step_time_error`` and
    ``step_time_bias`` are the mean of (measured - predicted) / measured over the last steps, without its sign and with
    it; None where no step is predicted. ``ttft_error`` and ``ttft_bias`` are the same of the last first tokens.
    ``deadline_outcomes`` counts first tokens with a deadline by (was expected late, was late). Of ``num_prompt_tokens``
    in all prompts that were begun, ``num_cached_tokens`` were found in the prefix cache, which has given up
    ``num_evictions`` blocks. ``disk_transfers`` counts blocks by what was to be done (save, load) and, of both, those
    that failed; it is empty where no tier on disk is kept.
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_admitted: int = 0
    num_preemptions: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    kv_blocks: Mapping[str, int] = field(default_factory=dict)
    queue_seconds: HistogramCounts | None = None
    step_seconds: HistogramCounts | None = None
    step_time_error: float | None = None
    step_time_bias: float | None = None
    ttft_error: float | None = None
    ttft_bias: float | None = None
    deadline_outcomes: Mapping[tuple[bool, bool], int] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_evictions: int = 0
    disk_transfers: Mapping[str, int] = field(default_factory=dict)
    fault: str | None = None
