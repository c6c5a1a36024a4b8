"""Is the server of use: does it take work, and does the engine get on with it?"""

from headway.observe.stats import EngineStats

STALL_S = 30.0  # the slowest step we know of, a full prefill chunk on one slow core, takes a third of this


class ProgressProbe:
    """Judges the engine by its step counter, which must grow while there is work. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._steps = -1
        self._since = 0.0

    def fault(self, stats: EngineStats, now: float) -> str | None:
        """Why the engine is not making progress, or None. Stalls count from the first look that saw work waiting."""
        if stats.fault is not None:
            return f"the engine has stopped: {stats.fault}"
        has_work = stats.num_running + stats.num_waiting > 0
        if not has_work:
            self._steps = -1
        elif stats.num_steps != self._steps:
            self._steps, self._since = stats.num_steps, now
        elif now - self._since >= STALL_S:
            return (
                f"no engine step for {now - self._since:.0f} s with {stats.num_running} requests running and "
                f"{stats.num_waiting} waiting"
            )
        return None
