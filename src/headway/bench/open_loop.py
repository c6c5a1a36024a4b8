"""Open-loop load: requests leave at their planned moments, whatever the server does, and the client watches itself."""

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headway.bench.client import Api, RequestFailure
from headway.bench.measures import RequestRecord
from headway.bench.workload import MIN_WORDS, PlannedRequest, TokenCount, random_words
from headway.errors import BenchError

LAG_PERIOD_S = 0.01
PROBE_WORDS = (2 * MIN_WORDS, 8 * MIN_WORDS)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Everything that can be computed beforehand has been."""

    plan: PlannedRequest
    data: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run left: its requests, how late each wait of the event loop ended, how long all of it took."""

    records: list[RequestRecord]
    loop_lag_s: list[float]
    duration_s: float


@dataclass(slots=True)
class Progress:
    num_planned: int
    num_sent: int = 0
    num_done: int = 0
    num_failed: int = 0


OnProgress = Callable[[Progress], None]


async def count_tokens(api: Api, seed: str, timeout_s: float) -> TokenCount:
    """How this server counts words, from its own usage for two short prompts; these also warm it up.

    A server that reports no usage is taken to count one token a word. BenchError when it does not answer as it should.
    """
    rng = random.Random(f"{seed}/probe")
    counts = []
    for num_words in PROBE_WORDS:
        record = RequestRecord(0.0, num_words, 1)
        await _send(api, api.request(random_words(num_words, rng), 1), record, 0.0, timeout_s)
        if record.error is not None:
            raise BenchError(f"the server does not answer a first request as it should: {record.error_detail}")
        if record.is_counted:
            counts.append((num_words, record.num_input_tokens))
    return TokenCount.fitted(*counts) if len(counts) == len(PROBE_WORDS) else TokenCount()


def prepare(api: Api, plan: Sequence[PlannedRequest], count: TokenCount, seed: str) -> list[PreparedRequest]:
    """Each prompt is drawn by a generator of its own, so no two are the same."""
    prepared = []
    for index, request in enumerate(plan):
        words = random_words(count.words(request.num_input_tokens), random.Random(f"{seed}/prompt/{index}"))
        prepared.append(PreparedRequest(request, api.request(words, request.num_output_tokens)))
    return prepared


async def run_load(
    api: Api, requests: Sequence[PreparedRequest], timeout_s: float, on_progress: OnProgress
) -> Recording:
    """Sends each request at its moment and waits for all answers. ``timeout_s`` bounds each.

    ``on_progress`` is called now and then, in the event loop, and must be quick.
    """
    loop = asyncio.get_running_loop()
    progress = Progress(len(requests))
    loop_lag_s: list[float] = []
    with _quiet_collector():
        watch = asyncio.create_task(_watch_loop(loop_lag_s, lambda: on_progress(progress)))
        try:
            began = loop.time()
            async with asyncio.TaskGroup() as group:
                tasks = []
                for request in requests:
                    await asyncio.sleep(began + request.plan.at_s - loop.time())
                    tasks.append(group.create_task(_answer(api, request, began, timeout_s, progress)))
                    progress.num_sent += 1
            duration_s = loop.time() - began
        finally:
            watch.cancel()
    on_progress(progress)
    return Recording([task.result() for task in tasks], loop_lag_s, duration_s)


async def _answer(
    api: Api, request: PreparedRequest, began: float, timeout_s: float, progress: Progress
) -> RequestRecord:
    plan = request.plan
    record = RequestRecord(plan.at_s, plan.num_input_tokens, plan.num_output_tokens)
    await _send(api, request.data, record, began, timeout_s)
    progress.num_done += 1
    progress.num_failed += record.error is not None
    return record


async def _send(api: Api, data: bytes, record: RequestRecord, began: float, timeout_s: float) -> None:
    record.sent_s = asyncio.get_running_loop().time() - began
    try:
        async with asyncio.timeout(timeout_s):
            await api.stream(data, record, began)
    except TimeoutError:
        record.error, record.error_detail = "timeout", f"no whole answer within {timeout_s:g} s"
    except RequestFailure as failure:
        record.error, record.error_detail = failure.kind, str(failure)


async def _watch_loop(lag_s: list[float], tick: Callable[[], None]) -> None:
    """Notes by how much each short sleep was too long: so late is everything else in this loop."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lag_s.append(max(0.0, loop.time() - due))
        tick()


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No pause to collect garbage in the middle of a run: it would be taken for the server's."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
