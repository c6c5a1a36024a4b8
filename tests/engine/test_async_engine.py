import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from fakes import WAIT_S, FakeExecutor, Gate, pause
from headway.config import EngineConfig, SchedulerConfig
from headway.core.admission import RefusalReason
from headway.core.request import FinishReason, SamplingParams
from headway.engine.async_engine import AsyncEngine, Stream
from headway.engine.generation import GenerationRequest, OutputDelta
from headway.errors import EngineStopped, InvalidRequest, RequestFailed, RequestRefused
from text_fakes import EOS, echo_executor, ids, make_parts

ENDLESS = {"ignore_eos": True, "max_tokens": 2000}  # with ``pause``: seconds

Scenario = Callable[[AsyncEngine], Coroutine[Any, Any, None]]


def run(
    scenario: Scenario,
    executor: FakeExecutor | None = None,
    config: SchedulerConfig | None = None,
    max_waiting_requests: int = 0,
) -> AsyncEngine:
    """Runs the scenario on an engine that echoes prompts, then checks that nothing was left behind."""
    parts = make_parts(executor or echo_executor())

    async def main() -> AsyncEngine:
        engine = AsyncEngine(
            parts, EngineConfig(config or SchedulerConfig(), max_waiting_requests=max_waiting_requests)
        )
        try:
            await asyncio.wait_for(scenario(engine), WAIT_S)
            assert await engine.drain(WAIT_S)
        finally:
            engine.stop()
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks["used"]) == (0, 0, 0)
        assert stats.num_admitted == sum(stats.finished.values())
        return engine

    return asyncio.run(main())


def request(text: str, **kwargs: Any) -> GenerationRequest:
    sampling = SamplingParams(**kwargs.pop("sampling", {}))
    return GenerationRequest(ids(text), sampling, **kwargs)


async def collect(stream: Stream) -> list[OutputDelta]:
    return [delta async for delta in stream]


def text_of(deltas: list[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_an_answer_arrives_in_deltas_with_one_end(max_in_flight):
    async def scenario(engine: AsyncEngine) -> None:
        deltas = await collect(await engine.submit(request("naïve 🦙")))
        assert text_of(deltas) == "naïve 🦙"
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.STOP]
        assert deltas[-1].usage.completion_tokens == len(ids("naïve 🦙")) + 1
        assert [t for delta in deltas for t in delta.token_ids] == [*ids("naïve 🦙"), EOS]

    run(scenario, config=SchedulerConfig(max_in_flight=max_in_flight))


def test_many_streams_at_once_do_not_mix():
    async def one(engine: AsyncEngine, index: int) -> None:
        text = f"answer number {index} " * (1 + index % 3)
        assert text_of(await collect(await engine.submit(request(text)))) == text

    async def scenario(engine: AsyncEngine) -> None:
        await asyncio.gather(*(one(engine, index) for index in range(60)))

    engine = run(scenario, echo_executor(num_blocks=60))
    assert engine.stats().finished["stop"] == 60


@pytest.mark.parametrize("seed", range(6))
def test_streams_that_come_and_go_at_random_leave_nothing_behind(seed):
    rng = random.Random(seed)

    async def one(engine: AsyncEngine, text: str, num_deltas: int) -> None:
        await asyncio.sleep(rng.random() / 20)
        stop = ("9",) if rng.random() < 0.3 else ()
        deltas: list[OutputDelta] = []
        async with aclosing(aiter(await engine.submit(request(text, stop=stop)))) as stream:
            async for delta in stream:
                deltas.append(delta)
                if len(deltas) == num_deltas:
                    break
        expected = text.partition("9")[0] if stop else text
        assert expected.startswith(text_of(deltas))
        if deltas[-1].finish_reason is not None:
            assert text_of(deltas) == expected

    async def scenario(engine: AsyncEngine) -> None:
        texts = [str(rng.randrange(10 ** rng.randint(1, 30))) for _ in range(80)]
        await asyncio.gather(*(one(engine, text, rng.choice([1, 5, 1000])) for text in texts))

    config = SchedulerConfig(max_batch_tokens=rng.randint(8, 64), max_in_flight=rng.randint(1, 3))
    engine = run(scenario, echo_executor(num_blocks=rng.randint(16, 60)), config)
    assert engine.stats().num_admitted == 80


def test_the_same_engine_serves_one_event_loop_after_another():
    engine = AsyncEngine(make_parts(echo_executor()))

    async def ask(text: str) -> str:
        return text_of(await collect(await engine.submit(request(text))))

    try:
        assert [asyncio.run(ask(text)) for text in ("one", "two")] == ["one", "two"]
    finally:
        engine.stop()


class TestBeforeAnyToken:
    def test_a_bad_field_is_an_invalid_request(self):
        async def scenario(engine: AsyncEngine) -> None:
            with pytest.raises(InvalidRequest) as caught:
                await engine.submit(request("x", sampling={"temperature": -1.0}))
            assert caught.value.param == "temperature"
            with pytest.raises(InvalidRequest, match="260"):
                await engine.submit(GenerationRequest((260,)))

        assert run(scenario).stats().num_admitted == 0

    def test_what_cannot_fit_is_refused_with_numbers(self):
        async def scenario(engine: AsyncEngine) -> None:
            with pytest.raises(RequestRefused, match="context holds 16") as caught:
                await engine.submit(request("x" * 16))
            assert caught.value.refusal.reason is RefusalReason.TOO_LONG

        run(scenario, echo_executor(num_blocks=8, block_size=4, max_context=16))

    def test_a_full_queue_is_refused_for_now(self):
        gate = Gate()

        async def scenario(engine: AsyncEngine) -> None:
            streams = [await engine.submit(request("x"))]
            await asyncio.to_thread(gate.wait)
            posted = [asyncio.create_task(engine.submit(request("x"))) for _ in range(4)]
            await asyncio.sleep(0)  # all are in the mailbox now
            gate.open_for_good()
            results = await asyncio.gather(*posted, return_exceptions=True)
            refusals = [result for result in results if isinstance(result, RequestRefused)]
            assert [error.refusal.is_retryable for error in refusals] == [True, True]
            streams += [result for result in results if isinstance(result, Stream)]
            for stream in streams:
                await collect(stream)

        run(scenario, echo_executor(gate, max_batch_rows=1), max_waiting_requests=2)

    def test_a_stopped_engine_says_so(self):
        async def scenario(engine: AsyncEngine) -> None:
            await engine.drain()
            with pytest.raises(EngineStopped, match="shutting down"):
                await engine.submit(request("x"))

        run(scenario)


class TestLeaving:
    """However a client leaves, its blocks are free after the step in flight."""

    def check(self, leave: Callable[[AsyncEngine, Stream], Coroutine[Any, Any, None]]) -> None:
        gate = Gate()

        async def scenario(engine: AsyncEngine) -> None:
            stream = await engine.submit(request("a long answer " * 4))
            await asyncio.to_thread(gate.wait)
            gate.open()
            await asyncio.to_thread(gate.wait)
            await leave(engine, stream)
            gate.open_for_good()
            assert await engine.drain(WAIT_S)
            assert engine.stats().num_steps <= 3

        engine = run(scenario, echo_executor(gate))
        assert engine.stats().finished["abort"] == 1

    def test_cancel_ends_the_stream_and_is_idempotent(self):
        async def leave(engine: AsyncEngine, stream: Stream) -> None:
            stream.cancel()
            stream.cancel()
            deltas = await collect(stream)
            assert [delta.finish_reason for delta in deltas] == [None, FinishReason.ABORT]
            assert await collect(stream) == [], "nothing more to give, and no hang"

        self.check(leave)

    def test_closing_the_iterator_cancels(self):
        async def leave(engine: AsyncEngine, stream: Stream) -> None:
            deltas = aiter(stream)
            await anext(deltas)
            await deltas.aclose()

        self.check(leave)

    def test_dropping_the_iterator_cancels(self):
        async def leave(engine: AsyncEngine, stream: Stream) -> None:
            async for _ in stream:
                break
            gc.collect()
            while not stream._ended:  # the event loop closes a dropped iterator in its own time
                await asyncio.sleep(0)

        self.check(leave)

    def test_a_cancelled_reader_cancels(self):
        async def leave(engine: AsyncEngine, stream: Stream) -> None:
            reader = asyncio.create_task(collect(stream))
            await asyncio.sleep(0.01)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader

        self.check(leave)

    def test_leaving_while_the_engine_has_not_answered_yet(self):
        gate = Gate()

        async def scenario(engine: AsyncEngine) -> None:
            first = await engine.submit(request("x"))
            await asyncio.to_thread(gate.wait)
            waiting = asyncio.create_task(engine.submit(request("a long answer")))
            await asyncio.sleep(0)
            waiting.cancel()
            gate.open_for_good()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await collect(first)

        run(scenario, echo_executor(gate))

    def test_cancel_after_the_end_changes_nothing(self):
        async def scenario(engine: AsyncEngine) -> None:
            stream = await engine.submit(request("ab"))
            deltas = await collect(stream)
            stream.cancel()
            assert deltas[-1].finish_reason is FinishReason.STOP

        assert run(scenario).stats().finished["abort"] == 0


def test_an_event_loop_that_ends_takes_its_requests_along(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    engine = AsyncEngine(make_parts(echo_executor(gate)))

    async def leave_unread() -> None:
        await engine.submit(request("a long answer", sampling={"ignore_eos": True, "max_tokens": 200}))
        await asyncio.to_thread(gate.wait)

    asyncio.run(leave_unread())
    gate.open_for_good()
    assert engine._engine.drain(WAIT_S)
    engine.stop()
    assert engine.stats().finished["abort"] == 1 and caplog.records == []


def test_a_stop_string_ends_the_request_in_the_core_too():
    async def scenario(engine: AsyncEngine) -> None:
        deltas = await collect(await engine.submit(request("one two three", stop=("three",), sampling=ENDLESS)))
        assert text_of(deltas) == "one two "
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "three")
        assert deltas[-1].usage.completion_tokens == len("one two three")

    engine = run(scenario, echo_executor(pause, num_blocks=600), SchedulerConfig(max_in_flight=3))
    assert engine.stats().finished == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_a_request_that_fails_raises_for_its_reader_alone():
    gate = Gate()
    executor = echo_executor(gate)

    async def scenario(engine: AsyncEngine) -> None:
        failing = await engine.submit(request("fails"))
        executor.errors[failing.request_id] = 7
        gate.open_for_good()
        fine = await engine.submit(request("is fine"))
        with pytest.raises(RequestFailed, match="row of"):
            await collect(failing)
        assert text_of(await collect(fine)) == "is fine"

    assert run(scenario, executor).stats().finished["error"] == 1


def test_text_that_cannot_be_made_fails_its_request_alone(monkeypatch, caplog):
    async def scenario(engine: AsyncEngine) -> None:
        def token_bytes(token_id: int) -> bytes:
            return bytes([token_id]) if token_id != ord("!") else bytes(1 // 0)

        monkeypatch.setattr(engine.tokenizer, "token_bytes", token_bytes)
        broken, fine = await engine.submit(request("oh!no")), await engine.submit(request("fine"))
        with pytest.raises(RequestFailed, match="text"):
            await collect(broken)
        assert text_of(await collect(fine)) == "fine"

    run(scenario)


def test_stopping_is_an_error_for_whoever_is_not_done():
    async def main() -> None:
        engine = AsyncEngine(make_parts(echo_executor(pause, num_blocks=600)))
        stream = await engine.submit(request("x", sampling=ENDLESS))
        await asyncio.to_thread(engine.stop)
        with pytest.raises(EngineStopped, match="shut down"):
            await collect(stream)

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_seeds_differ_unless_given():
    executor = echo_executor()

    async def scenario(engine: AsyncEngine) -> None:
        for seed in (None, None, 7):
            await collect(await engine.submit(request("x", sampling={"seed": seed})))

    run(scenario, executor)
    first, second, third = (new.sampling.seed for batch in executor.batches for new in batch.admitted)
    assert None is not first != second and third == 7


def test_a_class_that_is_not_there_is_refused_and_tenants_do_not_share_a_prefix():
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidRequest, match="interactive, standard, background"):
            await engine.submit(request("hi", request_class="urgent"))
        cached = {}
        for tenant in ("a", "a", "b"):
            deltas = await collect(await engine.submit(request("a prompt of some length", tenant=tenant)))
            cached.setdefault(tenant, []).append(deltas[-1].usage.cached_tokens)
        assert cached["a"][0] == 0 and cached["a"][1] > 0 and cached["b"] == [0]

    run(scenario)
