"""What deciding costs: microseconds of a decode step, ``begin_step`` and ``finish_step``, when computing is free.

    python benchmarks/scheduler_overhead.py [--steps N]

Prints the median and the 90th percentile for 1, 16 and 64 running requests, and for 64 beside 500 that wait, of 20
tenants, with step times predicted and learned. Blocks are allocated as in a real run: each request needs a new one
every ``BLOCK_SIZE`` steps.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

from headway.config import EngineConfig, SchedulerConfig
from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.engine_core import EngineCore, InFlightStep
from headway.core.executor import ExecutorInfo
from headway.core.request import Objective, Request, SamplingParams
from headway.cost.step_time import NUM_FEATURES, StepTimeModel

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 8
WARM_UP_STEPS = 50


@dataclass(frozen=True)
class NullStep:
    step_result: StepResult

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self.step_result


@dataclass
class NullExecutor:
    """Computes nothing: every step has the same ``sampled``, made beforehand, so that only the core is timed."""

    info: ExecutorInfo
    sampled: tuple[SampledToken, ...]

    def submit(self, batch: ScheduledBatch) -> NullStep:
        return NullStep(StepResult(batch.step_id, self.sampled, 0.0))


def step_seconds(num_requests: int, num_steps: int, num_waiting: int = 0, num_tenants: int = 1) -> list[float]:
    """Seconds of each of ``num_steps`` decode steps of ``num_requests`` requests, after prefill and a warm-up."""
    max_tokens = WARM_UP_STEPS + num_steps + 1
    request_ids = [f"request-{index}" for index in range(num_requests + num_waiting)]
    sampled = tuple(SampledToken(request_id, 1) for request_id in request_ids[:num_requests])
    step_times = StepTimeModel([1e-3] * NUM_FEATURES) if num_waiting else None
    core = EngineCore(
        NullExecutor(_info(num_requests, max_tokens), sampled),
        EngineConfig(SchedulerConfig(max_batch_rows=num_requests, policy="fair" if num_tenants > 1 else "fcfs")),
        step_times,
    )
    for index, request_id in enumerate(request_ids):
        sampling = SamplingParams(max_tokens=max_tokens, seed=0)
        request = Request(request_id, (1,) * NUM_PROMPT_TOKENS, sampling, frozenset({0}))
        request.tenant = f"tenant-{index % num_tenants}"
        request.objective = Objective(tpot_s=0.05)
        core.add_request(request, 0.0)
        if index + 1 == num_requests:
            core.finish_step(step := _begin(core, 0.0), step.handle.result(), 0.0)
    seconds = []
    for now in range(WARM_UP_STEPS + num_steps - 1):
        started = time.perf_counter()
        step = _begin(core, now)
        outputs = core.finish_step(step, step.handle.result(), now)
        seconds.append(time.perf_counter() - started)
        assert len(outputs) == num_requests
    return seconds[WARM_UP_STEPS:]


def _begin(core: EngineCore, now: float) -> InFlightStep:
    step = core.begin_step(now)
    assert step is not None
    return step


def _info(num_requests: int, max_tokens: int) -> ExecutorInfo:
    max_context = NUM_PROMPT_TOKENS + max_tokens
    num_blocks = num_requests * (-(-max_context // BLOCK_SIZE) + 1)
    return ExecutorInfo(num_blocks, BLOCK_SIZE, max_context, max_batch_tokens=512, max_batch_rows=64, vocab_size=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="timed steps for each number of requests")
    options = parser.parse_args()
    print(f"{'running':>8} {'waiting':>8} {'tenants':>8} {'median us':>10} {'p90 us':>10} {'us a request':>13}")
    for num_requests, num_waiting, num_tenants in ((1, 0, 1), (16, 0, 1), (64, 0, 1), (64, 500, 20)):
        seconds = step_seconds(num_requests, options.steps, num_waiting, num_tenants)
        median, p90 = statistics.median(seconds) * 1e6, statistics.quantiles(seconds, n=10)[-1] * 1e6
        loads = f"{num_requests:>8} {num_waiting:>8} {num_tenants:>8}"
        print(f"{loads} {median:>10.1f} {p90:>10.1f} {median / num_requests:>13.2f}")


if __name__ == "__main__":
    main()
