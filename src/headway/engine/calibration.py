"""A first model of step times: a few steps are run before anyone waits for one."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

from headway.core.batch import NewRequest, ScheduledBatch, ScheduledRow
from headway.core.executor import Executor, ExecutorInfo
from headway.core.request import SamplingParams
from headway.core.step_time import StepShape
from headway.cost.step_time import StepTimeModel


class Probe(NamedTuple):
    """A step to measure: so many requests, each computing ``num_tokens`` from position ``start`` on."""

    num_requests: int
    start: int
    num_tokens: int


def calibrated(
    executor: Executor, budget_s: float = 0.4, clock: Callable[[], float] = time.perf_counter
) -> StepTimeModel:
    """Runs probes, cheap ones first, over and over until ``budget_s`` is used up; a slow model is known from fewer.

    The fastest run of each counts: what disturbs a step, such as memory that is used for the first time or the rest of
    the start-up, only ever makes it longer. For an executor that nothing has used yet: probes write to the pool without
    asking whose blocks they are, and read from it whatever is there. Raises what a probe raises.
    """
    fastest: dict[StepShape, float] = {}
    began = clock()
    for number, probe in enumerate(cycle(_probes(executor.info))):
        if fastest and clock() - began > budget_s:
            return StepTimeModel.fitted(list(fastest.items()))
        shape, seconds = _measure(executor, probe, f"probe-{number}")
        fastest[shape] = min(seconds, fastest.get(shape, math.inf))
    raise ValueError("no probe fits this executor")


def _probes(info: ExecutorInfo) -> Iterator[Probe]:
    """Decodes by number and by context, then prompts by length and by context, where they fit the executor."""
    far = min(info.max_context // 2, 1024)
    for num_requests, start, num_tokens in (
        *((1, 0, 1), (1, far, 1), (4, 16, 1), (16, 16, 1), (16, far // 4, 1), (64, 16, 1)),
        *((1, 0, 16), (1, 0, 64), (1, far, 64), (1, 0, 256), (1, 0, 512)),
    ):
        probe = Probe(
            min(num_requests, info.max_batch_rows, info.max_batch_tokens),
            start,
            min(num_tokens, info.max_batch_tokens, info.max_context - 1 - start),
        )
        if probe.num_requests * _num_blocks(probe, info) <= info.num_blocks:
            yield probe


def _measure(executor: Executor, probe: Probe, name: str) -> tuple[StepShape, float]:
    batch = _batch(executor.info, probe, name)
    seconds = executor.submit(batch).result().seconds
    released = tuple(row.request_id for row in batch.rows)
    executor.submit(ScheduledBatch(batch.step_id, released, (), ())).result()
    return StepShape.of(batch.rows), seconds


def _batch(info: ExecutorInfo, probe: Probe, name: str) -> ScheduledBatch:
    num_blocks, end = _num_blocks(probe, info), probe.start + probe.num_tokens
    sampling = SamplingParams(max_tokens=1, temperature=0, seed=0)
    ids = [f"{name}-{number}" for number in range(probe.num_requests)]
    admitted = tuple(NewRequest(request_id, (0,) * end, end, sampling, frozenset()) for request_id in ids)
    rows = tuple(
        ScheduledRow(
            request_id, probe.start, probe.num_tokens, tuple(range(i * num_blocks, (i + 1) * num_blocks)), True
        )
        for i, request_id in enumerate(ids)
    )
    return ScheduledBatch(-1, (), admitted, rows)


def _num_blocks(probe: Probe, info: ExecutorInfo) -> int:
    return -(-(probe.start + probe.num_tokens) // info.block_size)
