"""Engines in this process: prefill, decode and single-stream speed through the scheduler, the model and the sampler."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from headway.config import EngineConfig, SchedulerConfig
from headway.core.engine_core import EngineCore, InFlightStep
from headway.core.executor import Executor
from headway.core.request import Request, SamplingParams
from headway.errors import BenchError, ConfigError, RequestRefused

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Work:
    """``batch`` requests at once, each of ``prompt`` random tokens and then ``output`` tokens."""

    batch: int
    prompt: int
    output: int

    def __post_init__(self) -> None:
        if min(self.batch, self.prompt, self.output) < 1:
            raise ConfigError(f"{self}: batch, prompt and output must each be at least 1")

    def __str__(self) -> str:
        return f"{self.batch} x ({self.prompt} in + {self.output} out)"


THROUGHPUT_WORKS = (Work(1, 512, 1), Work(1, 32, 96), Work(8, 32, 48), Work(32, 32, 32), Work(32, 256, 64))
LATENCY_WORKS = tuple(Work(1, prompt, 64) for prompt in (32, 128, 512))


@dataclass(frozen=True, slots=True)
class RunTimes:
    """When each token of each request came, in seconds since all were added."""

    work: Work
    token_s: list[list[float]]

    @property
    def prefill_s(self) -> float:
        """Until every request has its first token."""
        return max(times[0] for times in self.token_s)

    @property
    def decode_s(self) -> float:
        return max(times[-1] for times in self.token_s) - self.prefill_s

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.work.batch * self.work.prompt / self.prefill_s

    @property
    def num_decoded(self) -> int:
        """Tokens after ``prefill_s``."""
        return sum(at > self.prefill_s for times in self.token_s for at in times)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of the tokens after ``prefill_s``; None when there were none."""
        return self.num_decoded / self.decode_s if self.num_decoded else None

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def total_tokens_per_s(self) -> float:
        return self.work.batch * (self.work.prompt + self.work.output) / self.total_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for times in self.token_s for before, after in pairwise(times)]


class OfflineEngine:
    """Drives an ``EngineCore`` of its own over ``executor``, with prompts that never repeat."""

    def __init__(
        self, executor: Executor, config: SchedulerConfig, seed: int = 0, clock: Clock = time.perf_counter
    ) -> None:
        self._core = EngineCore(executor, EngineConfig(config, prefix_cache=False))  # there is nothing to find again
        self._vocab_size = executor.info.vocab_size
        self._rng = random.Random(seed)
        self._clock = clock
        self._names = (f"bench-{number}" for number in count())

    def run(self, work: Work) -> RunTimes:
        """RequestRefused when the pool or the context cannot hold it, BenchError when a request fails."""
        requests = [self._request(work) for _ in range(work.batch)]
        tokens: dict[str, list[float]] = {request.request_id: [] for request in requests}
        began = self._clock()
        for request in requests:
            self._add(request, began, requests)
        for request_id, num_tokens in self._outputs():
            tokens[request_id] += [self._clock() - began] * num_tokens
        return RunTimes(work, list(tokens.values()))

    def rounds(self, work: Work, num_rounds: int) -> Iterator[RunTimes]:
        """One run that is not counted, then ``num_rounds``."""
        self.run(work)
        for _ in range(num_rounds):
            yield self.run(work)

    def _request(self, work: Work) -> Request:
        prompt = tuple(self._rng.choices(range(self._vocab_size), k=work.prompt))
        return Request(next(self._names), prompt, SamplingParams(work.output, temperature=0, seed=0, ignore_eos=True))

    def _add(self, request: Request, now: float, all_requests: Sequence[Request]) -> None:
        refusal = self._core.add_request(request, now).refusal
        if refusal is not None:
            for other in all_requests:
                self._core.abort_request(other.request_id, now)
            raise RequestRefused(refusal)

    def _outputs(self) -> Iterator[tuple[str, int]]:
        """(request, new tokens) as steps finish, until no request is left."""
        in_flight: deque[InFlightStep] = deque()
        while True:
            while (begun := self._core.begin_step(self._clock())) is not None:
                in_flight.append(begun)
            if not in_flight:
                return
            step = in_flight.popleft()
            for output in self._core.finish_step(step, step.handle.result(), self._clock()):
                if output.error is not None:
                    raise BenchError(f"a request failed: {output.error}")
                yield output.request_id, len(output.new_token_ids)
