"""How much a step may compute: the tokens it may hold, and the time that those who decode can wait for it."""

import math
from collections.abc import Iterable

from headway.core.request import Request
from headway.core.step_time import StepShape, StepTimes


class StepBudget:
    """What is left for prefill of a step that is being filled.

    A request that decodes always gets its token: they are kept back for all of them. Prefill gets what is left, and,
    where step times can be predicted, no more than lets every request that decodes have its next token when it is due
    (``Request.next_token_due_s``):

        now                         the first due
        | decodes of this step | prefill ...... |

    Two floors keep prefill moving: ``min_prefill_tokens`` a step; and when the decodes alone take longer than an
    objective asks, nothing can hold it, and prefill may take as long as they do.
    """

    def __init__(self, max_tokens: int, min_prefill_tokens: int, times: StepTimes | None = None) -> None:
        self.tokens_left = max_tokens
        self._min_prefill_tokens = min_prefill_tokens
        self._times = times
        self._has_prefill = False
        self._limit_s = math.inf
        self._shape = StepShape()  # of the decodes and the prefill taken so far

    def keep_back(self, decoding: Iterable[Request], now: float) -> None:
        """Reserves a token for each of these requests, and finds how long the step may take for them."""
        due_s = tpot_s = math.inf
        for request in decoding:
            self.tokens_left -= 1
            if self._times is not None:
                due_s = min(due_s, request.next_token_due_s)
                tpot_s = min(tpot_s, request.objective.tpot_s)
                self._shape = self._shape.plus(request.num_tokens - 1, 1, True)
        if self._times is None or due_s == math.inf:
            return
        decode_s = self._times.seconds(self._shape)
        self._limit_s = due_s - now if decode_s < tpot_s else 2 * decode_s

    @property
    def has_prefill_room(self) -> bool:
        """Whether another request may begin in this step. The first prefill may always."""
        if self.tokens_left <= 0:
            return False
        return self._limit_s == math.inf or not self._has_prefill or self._ends_in_time(0, 1)

    def tokens_for(self, request: Request, wanted: int) -> int:
        """How many of its ``wanted`` tokens the request may compute in this step: at least one if there is room."""
        if not self.has_prefill_room:
            return 0
        most = min(wanted, self.tokens_left)
        if self._limit_s == math.inf:
            return most
        least = 1 if self._has_prefill else min(most, self._min_prefill_tokens)
        return self._most_in_time(request.num_computed_tokens, least, most)

    def take(self, request: Request, num_tokens: int, samples: bool) -> None:
        """``num_tokens`` more of the step are the request's prefill; before they count as computed."""
        self.tokens_left -= num_tokens
        self._has_prefill = True
        if self._limit_s != math.inf:
            self._shape = self._shape.plus(request.num_computed_tokens, num_tokens, samples)

    def _most_in_time(self, start: int, least: int, most: int) -> int:
        """The largest number from ``least`` to ``most`` that ends within the limit; ``least`` when none does."""
        while least < most:
            middle = (least + most + 1) // 2
            if self._ends_in_time(start, middle):
                least = middle
            else:
                most = middle - 1
        return least

    def _ends_in_time(self, start: int, num_tokens: int) -> bool:
        assert self._times is not None
        return self._times.seconds(self._shape.plus(start, num_tokens, True)) <= self._limit_s
