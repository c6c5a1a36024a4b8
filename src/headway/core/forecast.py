"""When a waiting request will have its first token."""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from headway.core.output_lengths import OutputLengths
from headway.core.request import Request
from headway.core.step_time import StepShape, StepTimes


class Forecast:
    """Predicts from what runs, what is ahead and how long steps take; nothing is computed or changed for it.

    Prefill and decode share each step. Of a step of length T, the decodes of n requests take D(n) and the rest is
    prefill's, so a prefill that takes P alone takes P * T / (T - D(n)) beside them. T is the tightest objective for
    their tokens, or a step that is full; where the decodes alone take longer, prefill may double it (``StepBudget``).
    """

    def __init__(
        self, times: StepTimes, max_step_tokens: int, max_running: int, block_size: int, lengths: OutputLengths
    ) -> None:
        self._times = times
        self._max_step_tokens = max_step_tokens
        self._max_running = max_running
        self._block_size = block_size
        self._lengths = lengths

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Of all ``num_tokens`` with nothing beside them, when the first ``num_cached`` are found."""
        return self._times.seconds(StepShape().plus(num_cached, num_tokens - num_cached, True))

    def first_token_s(
        self, request: Request, ahead: Iterable[Request], running: Sequence[Request], num_free_blocks: int
    ) -> float:
        """Seconds until the first token of ``request``, that waits behind ``ahead``."""
        decode_s, limit_s = self._pace(running)
        flow = _Flow(decode_s, limit_s, self._max_running, num_free_blocks)
        for other in running:
            num_missing = self._num_missing(other)
            flow.hold(self._remaining(other), self._num_blocks(other) + num_missing, num_missing)
        for other in running:
            if other.num_computed_tokens < other.num_prompt_tokens:
                flow.prefill(other.prefill_s * (1 - other.num_computed_tokens / other.num_prompt_tokens))
        for other in (*ahead, request):
            num_blocks = self._num_blocks(other) + self._num_missing(other)
            flow.wait_for_room(num_blocks)
            flow.prefill(other.prefill_s)
            flow.hold(self._remaining(other), num_blocks, num_blocks)
        return flow.seconds

    def _pace(self, running: Sequence[Request]) -> tuple[Callable[[int], float], float]:
        """D(n), with the contexts of those that run now, and T."""
        context = sum(other.num_tokens for other in running) // max(1, len(running))
        known: dict[int, float] = {}

        def decode_s(num_requests: int) -> float:
            if num_requests not in known:
                known[num_requests] = self._times.seconds(StepShape.of_decodes(num_requests, context))
            return known[num_requests]

        tpot_s = min((other.objective.tpot_s for other in running), default=math.inf)
        return decode_s, min(tpot_s, self._times.seconds(StepShape().plus(0, self._max_step_tokens, True)))

    def _remaining(self, request: Request) -> int:
        num_made = len(request.output_token_ids)
        return self._lengths.remaining(request.tenant, num_made, request.max_tokens)

    def _num_blocks(self, request: Request) -> int:
        return -(-request.num_tokens // self._block_size)

    def _num_missing(self, request: Request) -> int:
        """Blocks that it is expected to need still, beyond those for the tokens it has."""
        return -(-(request.num_tokens + self._remaining(request)) // self._block_size) - self._num_blocks(request)


class _Flow:
    """Requests as a flow through the machine: what runs ends one after the other, what waits begins in between."""

    def __init__(
        self, decode_s: Callable[[int], float], limit_s: float, max_running: int, num_free_blocks: int
    ) -> None:
        self.seconds = 0.0
        self._decode_s = decode_s
        self._limit_s = limit_s
        self._max_running = max_running
        self._num_free = num_free_blocks
        self._num_steps = 0.0
        self._running: list[tuple[float, int]] = []  # a heap of (the step at which it ends, the blocks it holds)

    def hold(self, num_remaining: int, num_blocks: int, num_to_take: int) -> None:
        """A request runs: after so many tokens it gives ``num_blocks`` back, ``num_to_take`` of which are free now."""
        heappush(self._running, (self._num_steps + num_remaining, num_blocks))
        self._num_free -= num_to_take

    def wait_for_room(self, num_blocks: int) -> None:
        while self._running and (len(self._running) >= self._max_running or num_blocks > self._num_free):
            end = self._running[0][0]
            self.seconds += max(0.0, end - self._num_steps) * self._decode_s(len(self._running))
            self._advance(end)

    def prefill(self, alone_s: float) -> None:
        decode_s = self._decode_s(len(self._running)) if self._running else 0.0
        step_s = self._limit_s if decode_s < self._limit_s else 2 * decode_s
        seconds = alone_s * step_s / (step_s - decode_s)
        self.seconds += seconds
        self._advance(self._num_steps + seconds / max(step_s, 1e-9))

    def _advance(self, num_steps: float) -> None:
        self._num_steps = max(self._num_steps, num_steps)
        while self._running and self._running[0][0] <= self._num_steps:
            self._num_free += heappop(self._running)[1]
