"""A histogram that one thread writes and others read as snapshots, without a lock."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """``counts[i]`` values were at most ``bounds[i]`` and above the bound before; the last one counts the rest."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramCounts:
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)
