import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from fakes import WAIT_S, FakeExecutor, Gate, expected_tokens, make_info, make_request, pause
from headway.config import EngineConfig, SchedulerConfig
from headway.core.engine_core import EngineCore
from headway.core.request import FinishReason, Request
from headway.engine.engine_loop import MAX_FAILED_STEPS, EngineLoop
from headway.errors import EngineStopped

VOCAB = 1000


class Listener:
    def __init__(self) -> None:
        self.outputs: SimpleQueue = SimpleQueue()
        self.token_ids: list[int] = []

    def last(self):
        """The output that ends the request, whatever came before."""
        while True:
            output = self.outputs.get(timeout=WAIT_S)
            if isinstance(output, EngineStopped) or output.finish_reason is not None:
                return output
            self.token_ids += output.new_token_ids


@contextmanager
def running(executor: FakeExecutor | None = None, **config) -> Iterator[EngineLoop]:
    loop = EngineLoop(EngineCore(executor or FakeExecutor(make_info()), EngineConfig(SchedulerConfig(**config))))
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def submit(loop: EngineLoop, request: Request) -> Listener:
    listener = Listener()
    assert loop.submit(request, listener.outputs.put).result(timeout=WAIT_S).is_admitted
    return listener


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_requests_from_many_threads_all_end_with_their_text(max_in_flight):
    with running(max_in_flight=max_in_flight) as loop:
        requests = [make_request(f"r{index}", max_tokens=1 + index % 9) for index in range(40)]
        listeners: dict[str, Listener] = {}

        def send(part: list[Request]) -> None:
            for request in part:
                listeners[request.request_id] = submit(loop, request)

        senders = [threading.Thread(target=send, args=(requests[start::4],)) for start in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(WAIT_S)
        for request in requests:
            listener = listeners[request.request_id]
            last = listener.last()
            assert [*listener.token_ids, *last.new_token_ids] == expected_tokens(request, VOCAB)[0]
        assert loop.drain(WAIT_S)
        stats = loop.stats()
        assert (stats.num_admitted, stats.finished["length"]) == (40, 40)
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks["used"]) == (0, 0, 0)


def test_a_refusal_comes_back_as_a_value():
    with running() as loop:
        admission = loop.submit(make_request("a", num_prompt_tokens=10_000), print).result(WAIT_S)
        assert admission.refusal is not None
        assert loop.stats().num_admitted == 0


def test_a_fault_while_adding_comes_back_too():
    gate = Gate()
    with running(FakeExecutor(make_info(), before_step=gate)) as loop:
        submit(loop, make_request("a"))
        again = loop.submit(make_request("a"), print)
        gate.open_for_good()
        with pytest.raises(ValueError, match="in use"):
            again.result(WAIT_S)


def test_an_idle_loop_sleeps_and_wakes():
    calls = []
    executor = FakeExecutor(make_info(), before_step=lambda: calls.append(1))
    with running(executor) as loop:
        submit(loop, make_request("a", max_tokens=2)).last()
        assert loop.drain(WAIT_S)
        assert len(calls) == loop.stats().num_steps == 2


def test_an_abort_takes_effect_after_the_step_in_flight():
    gate = Gate()
    executor = FakeExecutor(make_info(), before_step=gate)
    with running(executor) as loop:
        listener = submit(loop, make_request("a", max_tokens=50))
        gate.wait()
        loop.abort("a")
        loop.abort("a")
        loop.abort("unknown")
        gate.open_for_good()
        assert listener.last().finish_reason is FinishReason.ABORT
        assert loop.drain(WAIT_S)
        assert loop.stats().num_steps == 1
        assert loop.stats().kv_blocks["used"] == 0
        assert loop.stats().finished == {"stop": 0, "length": 0, "abort": 1, "error": 0}


def test_an_abort_for_a_stop_string_counts_as_stop():
    gate = Gate()
    with running(FakeExecutor(make_info(), before_step=gate)) as loop:
        listener = submit(loop, make_request("a", max_tokens=50))
        gate.wait()
        loop.abort("a", FinishReason.STOP)
        gate.open_for_good()
        assert listener.last().finish_reason is FinishReason.STOP


def test_a_withdrawn_request_is_never_admitted():
    gate = Gate()
    with running(FakeExecutor(make_info(), before_step=gate)) as loop:
        submit(loop, make_request("a", max_tokens=3))
        gate.wait()
        future: Future = loop.submit(make_request("b"), print)
        assert future.cancel()
        gate.open_for_good()
        assert loop.drain(WAIT_S)
        assert loop.stats().num_admitted == 1


def test_a_failed_step_ends_its_requests_and_the_loop_goes_on(caplog):
    executor = FakeExecutor(make_info(max_batch_rows=1))
    executor.failing_steps = {1}
    with running(executor) as loop:
        failed, fine = submit(loop, make_request("a")), submit(loop, make_request("b"))
        last = failed.last()
        assert last.finish_reason is FinishReason.ERROR and "step 1 was made to fail" in last.error
        assert fine.last().finish_reason is FinishReason.LENGTH
        assert "step 1 failed" in caplog.text


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_broken_device_stops_the_loop_and_everyone_is_told(max_in_flight, caplog):
    executor = FakeExecutor(make_info(max_batch_rows=1))
    executor.failing_steps = range(1000)
    with running(executor, max_in_flight=max_in_flight) as loop:
        listeners = [submit(loop, make_request(f"r{index}")) for index in range(2)]
        ends = [listener.last() for listener in listeners]
        while loop.stats().fault is None:
            index = len(ends)
            try:
                ends.append(submit(loop, make_request(f"r{index}")).last())
            except EngineStopped:
                break
        assert all(isinstance(end, EngineStopped) or end.finish_reason is FinishReason.ERROR for end in ends)
        with pytest.raises(EngineStopped, match="has failed"):
            loop.submit(make_request("late"), print).result(WAIT_S)
        assert executor.batches and len(executor.batches) <= MAX_FAILED_STEPS + max_in_flight
        assert loop.drain(WAIT_S), "nothing is left to wait for"


def test_a_fault_of_the_core_stops_the_loop_and_everyone_is_told(caplog, monkeypatch):
    with running() as loop:
        monkeypatch.setattr(EngineCore, "begin_step", lambda self, now: 1 / 0)
        listener = Listener()
        future = loop.submit(make_request("a"), listener.outputs.put)
        assert future.result(WAIT_S).is_admitted
        assert "ZeroDivisionError" in str(listener.last())
        loop.stop()
        stats = loop.stats()
        assert "ZeroDivisionError" in stats.fault
        assert stats.finished["error"] == 1
        assert stats.num_admitted == sum(stats.finished.values()) + stats.num_running + stats.num_waiting


def test_stop_tells_whoever_still_has_a_request():
    with running(FakeExecutor(make_info(num_blocks=600), before_step=pause)) as loop:
        listener = submit(loop, make_request("a", max_tokens=2000))
        loop.stop()
        last = listener.last()
        assert isinstance(last, EngineStopped) and "shut down" in str(last)
        with pytest.raises(EngineStopped, match="shut down"):
            loop.submit(make_request("b"), print)
        assert loop.stats().fault is not None and loop.stats().num_running == 0


def test_drain_refuses_what_is_new_and_lets_the_rest_finish():
    gate = Gate()
    with running(FakeExecutor(make_info(), before_step=gate)) as loop:
        listener = submit(loop, make_request("a", max_tokens=4))
        gate.wait()
        assert not loop.drain(timeout_s=0.01)
        with pytest.raises(EngineStopped, match="shutting down"):
            loop.submit(make_request("b"), print)
        gate.open_for_good()
        assert loop.drain(WAIT_S)
        assert listener.last().finish_reason is FinishReason.LENGTH


def test_a_listener_that_raises_loses_its_request_and_nothing_else(caplog):
    gate = Gate()
    with running(FakeExecutor(make_info(), before_step=gate)) as loop:

        def broken(output):
            raise RuntimeError("gone")

        loop.submit(make_request("a", max_tokens=50), broken).result(WAIT_S)
        fine = submit_while_waiting(loop, gate, make_request("b", max_tokens=5))
        assert fine.last().finish_reason is FinishReason.LENGTH
        assert loop.drain(WAIT_S)
        assert loop.stats().finished["abort"] == 1


def submit_while_waiting(loop: EngineLoop, gate: Gate, request: Request) -> Listener:
    listener = Listener()
    future = loop.submit(request, listener.outputs.put)
    gate.open_for_good()
    assert future.result(WAIT_S).is_admitted
    return listener


def test_counts_add_up_while_requests_come_and_go():
    with running() as loop:
        listeners = [submit(loop, make_request(f"r{index}", max_tokens=30)) for index in range(20)]
        for index in range(0, 20, 3):
            loop.abort(f"r{index}")
        for listener in listeners:
            listener.last()
            stats = loop.stats()
            assert stats.num_admitted == sum(stats.finished.values()) + stats.num_running + stats.num_waiting
