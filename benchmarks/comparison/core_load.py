"""Requests that arrive at an ``EngineCore`` at given times: on a real device, or on a clock that predicted steps move.

The same loop, scheduler and admission for both; only where time comes from differs.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from headway.config import EngineConfig
from headway.core.admission import Refusal
from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.engine_core import EngineCore
from headway.core.executor import Executor, ExecutorInfo
from headway.core.request import Objective, Request, RequestClass, SamplingParams
from headway.core.step_time import StepShape, StepTimes

_names = count()


@dataclass(frozen=True)
class Arrival:
    """One request to come: when, its lengths in tokens, who sends it and what it asks of time."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    objective: Objective = field(default_factory=Objective)
    tenant: str = ""
    request_class: RequestClass = field(default_factory=RequestClass)

    def request(self, rng: random.Random, vocab_size: int) -> Request:
        tokens = tuple(rng.choices(range(vocab_size), k=self.num_prompt_tokens))
        sampling = SamplingParams(self.num_output_tokens, temperature=0, seed=0, ignore_eos=True)
        return Request(
            f"load-{next(_names)}",
            tokens,
            sampling,
            objective=self.objective,
            tenant=self.tenant,
            request_class=self.request_class,
            cache_salt=self.tenant,
        )


@dataclass
class Served:
    """What became of an arrival. Times are in seconds from the start of the run."""

    arrival: Arrival
    request: Request
    refusal: Refusal | None = None

    @property
    def ttft_s(self) -> float | None:
        first = self.request.first_token_s
        return None if first is None else first - self.arrival.at_s

    @property
    def tpot_s(self) -> float:
        first, last, num_after = (
            self.request.first_token_s,
            self.request.last_token_s,
            len(self.request.output_token_ids) - 1,
        )
        return (last - first) / num_after if first is not None and last is not None and num_after > 0 else 0.0

    @property
    def meets_objective(self) -> bool:
        wanted = self.arrival.objective
        return self.ttft_s is not None and self.ttft_s <= wanted.ttft_s and self.tpot_s <= wanted.tpot_s


class WallClock:
    def __init__(self) -> None:
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    def wait_until(self, due_s: float) -> None:
        time.sleep(max(0.0, due_s - self.now()))

    def step(self, seconds: float) -> None:
        """It has passed while the step ran."""


class VirtualClock:
    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, due_s: float) -> None:
        self._now = max(self._now, due_s)

    def step(self, seconds: float) -> None:
        self._now += seconds


class PredictedExecutor:
    """Computes nothing: a step takes as long as ``times`` predict, and every token is 0."""

    def __init__(self, info: ExecutorInfo, times: StepTimes) -> None:
        self.info = info
        self._times = times

    def submit(self, batch: ScheduledBatch) -> "_Predicted":
        sampled = tuple(SampledToken(row.request_id, 0) for row in batch.rows if row.samples)
        return _Predicted(StepResult(batch.step_id, sampled, self._times.seconds(StepShape.of(batch.rows))))


class _Predicted:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result


@dataclass
class CoreLoad:
    """Runs arrivals through an engine of its own, to the end of the last answer."""

    executor: Executor
    config: EngineConfig
    step_times: StepTimes | None
    clock: type[WallClock] | type[VirtualClock] = WallClock
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, arrivals: Sequence[Arrival]) -> list[Served]:
        vocab_size = self.executor.info.vocab_size
        planned = [Served(arrival, arrival.request(self.rng, vocab_size)) for arrival in arrivals]
        core, clock, next_up = EngineCore(self.executor, self.config, self.step_times), self.clock(), 0
        while True:
            while next_up < len(planned) and planned[next_up].arrival.at_s <= clock.now():
                served = planned[next_up]
                served.refusal = core.add_request(served.request, clock.now()).refusal
                next_up += 1
            step = core.begin_step(clock.now())
            if step is not None:
                result = step.handle.result()
                clock.step(result.seconds)
                core.finish_step(step, result, clock.now())
            elif next_up < len(planned):
                clock.wait_until(planned[next_up].arrival.at_s)
            else:
                break
        released = tuple(served.request.request_id for served in planned if served.refusal is None)
        self.executor.submit(ScheduledBatch(-1, released, (), ())).result()  # the next core begins anew
        return planned
