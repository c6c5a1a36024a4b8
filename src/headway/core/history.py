"""What requests have shown: lengths of answers, how often one ends, how good predictions of first tokens were."""

import math
from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType

from headway.core.output_lengths import OutputLengths
from headway.core.request import FinishReason, Request

NUM_ENDS = 32  # that the rate is taken from
MEMORY = 0.05  # the weight of the last first token in the mean error
ERROR_AT_FIRST = 0.25


class History:
    """Told of every first token and every end; asked by admission, the reserve and the metrics.

    ``ttft_error`` is the mean of |actual - predicted| / the larger of the two over the last first tokens, ``ttft_bias``
    the same with its sign. ``deadline_outcomes`` counts requests with a deadline by (was expected late, was late).
    """

    def __init__(self) -> None:
        self.lengths = OutputLengths()
        self.ttft_error = ERROR_AT_FIRST
        self.ttft_bias = 0.0
        self._ends: deque[float] = deque(maxlen=NUM_ENDS)
        self._outcomes: Counter[tuple[bool, bool]] = Counter()

    @property
    def deadline_outcomes(self) -> Mapping[tuple[bool, bool], int]:
        return MappingProxyType(self._outcomes)

    @property
    def seconds_per_departure(self) -> float | None:
        """Mean time between the last ends; None before the second one."""
        if len(self._ends) < 2:
            return None
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    def first_token(self, request: Request, now: float) -> None:
        predicted, actual = request.predicted_ttft_s, now - request.arrival_s
        if predicted is None:
            return
        error = (actual - predicted) / max(actual, predicted, 1e-9)
        self.ttft_error += MEMORY * (abs(error) - self.ttft_error)
        self.ttft_bias += MEMORY * (error - self.ttft_bias)
        if request.objective.deadline_s < math.inf:
            self._outcomes[request.is_expected_late, actual > request.objective.deadline_s] += 1

    def ended(self, request: Request, now: float) -> None:
        """An answer that was cut short says nothing about how long it would have been."""
        self._ends.append(now)
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.lengths.record(request.tenant, len(request.output_token_ids))
