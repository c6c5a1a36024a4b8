import asyncio
import gc
import json
import time
from collections.abc import Sequence

import pytest
from sse_server import DONE, HANG, HEAD, FakeServer, chunk, completion, plain, response, serving, usage

from headway.bench.client import Api, Server
from headway.bench.open_loop import PROBE_WORDS, Progress, Recording, count_tokens, prepare, run_load
from headway.bench.workload import PlannedRequest, TokenCount
from headway.errors import BenchError

ANSWER = response(completion("one "), completion("two", "length"), usage(12, 2), DONE)
PLAN = [PlannedRequest(at, 20, 2) for at in (0.0, 0.01, 0.03)]


def load(
    *answers: Sequence[bytes], plan: Sequence[PlannedRequest] = PLAN, timeout_s: float = 10.0
) -> tuple[Recording, FakeServer, list[Progress]]:
    seen: list[Progress] = []

    async def run() -> tuple[Recording, FakeServer]:
        async with serving(*answers) as fake:
            api = Api(Server.at(fake.url), "m")
            requests = prepare(api, plan, TokenCount(), "seed")
            return await run_load(api, requests, timeout_s, seen.append), fake

    recording, fake = asyncio.run(run())
    return recording, fake, seen


def prompts(fake: FakeServer) -> list[str]:
    return [json.loads(request.partition(b"\r\n\r\n")[2])["prompt"] for request in fake.requests]


def test_requests_leave_at_their_moments_and_are_recorded_in_order() -> None:
    recording, fake, seen = load(ANSWER)
    records = recording.records
    assert [record.scheduled_s for record in records] == [0.0, 0.01, 0.03]
    assert all(record.send_lag_s >= 0 and record.error is None for record in records)
    assert all(record.sent_s < record.event_s[0] for record in records)
    assert recording.duration_s >= max(record.end_s for record in records)
    assert (seen[-1].num_sent, seen[-1].num_done, seen[-1].num_failed) == (3, 3, 0)
    assert len(set(prompts(fake))) == 3 and all(len(prompt.split()) == 20 for prompt in prompts(fake))


def test_a_slow_answer_holds_nobody_up() -> None:
    """Open loop: the second request leaves while the first still waits."""
    recording, fake, _ = load([HEAD, HANG], ANSWER, plan=PLAN[:2], timeout_s=1.5)
    assert len(fake.requests) == 2
    assert sorted(str(record.error) for record in recording.records) == ["None", "timeout"]


def test_failures_are_recorded_each_for_itself() -> None:
    recording, _, seen = load(plain("503 Busy", b""), [HEAD, chunk(completion("a"))], ANSWER)
    kinds = sorted(str(record.error) for record in recording.records)
    assert kinds == ["None", "cut stream", "http 503"]
    assert seen[-1].num_failed == 2


def test_the_loops_lag_is_noted_all_the_time() -> None:
    plan = [PlannedRequest(at, 8, 2) for at in (0.0, 0.1)]
    recording, _, _ = load(ANSWER, plan=plan)
    assert recording.loop_lag_s and all(lag >= 0 for lag in recording.loop_lag_s)


def test_a_blocked_client_is_seen() -> None:
    """A loop that stands still shows both in the requests that leave late and in the watch."""

    async def run() -> Recording:
        async with serving(ANSWER) as fake:
            api = Api(Server.at(fake.url), "m")
            requests = prepare(api, [PlannedRequest(at, 8, 2) for at in (0.0, 0.05, 0.1)], TokenCount(), "seed")
            asyncio.get_running_loop().call_later(0.02, time.sleep, 0.2)
            return await run_load(api, requests, 10.0, lambda progress: None)

    recording = asyncio.run(run())
    assert recording.records[1].send_lag_s > 0.1
    assert max(recording.loop_lag_s) > 0.1


def test_the_garbage_collector_is_as_it_was() -> None:
    load(ANSWER)
    assert gc.isenabled()


# -- how the server counts --


def counted(*answers: Sequence[bytes]) -> tuple[TokenCount, FakeServer]:
    async def run() -> tuple[TokenCount, FakeServer]:
        async with serving(*answers) as fake:
            return await count_tokens(Api(Server.at(fake.url), "m"), "seed", 10), fake

    return asyncio.run(run())


def probe(*usages: bytes) -> list[bytes]:
    return response(completion("a", "length"), *usages, DONE)


def test_two_prompts_show_how_words_are_counted() -> None:
    few, many = PROBE_WORDS
    count, fake = counted(probe(usage(2 * few + 7, 1)), probe(usage(2 * many + 7, 1)))
    assert count == TokenCount(2.0, 7.0)
    assert [len(prompt.split()) for prompt in prompts(fake)] == [few, many]


def test_a_server_that_does_not_count() -> None:
    assert counted(probe())[0] == TokenCount()


def test_a_first_request_that_fails_ends_it_with_the_reason() -> None:
    with pytest.raises(BenchError, match="http 400: no such field"):
        counted(plain("400 Bad Request", b"no such field"))
