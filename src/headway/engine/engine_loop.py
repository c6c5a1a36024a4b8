"""The live driver: one thread that owns an ``EngineCore``, gives it the time, and waits for its steps."""

import atexit
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue

from headway.core.admission import Admission
from headway.core.batch import RequestOutput
from headway.core.engine_core import EngineCore, InFlightStep
from headway.core.request import FinishReason, Request
from headway.errors import EngineStopped
from headway.observe.histogram import Histogram
from headway.observe.stats import ITL_BUCKETS, TTFT_BUCKETS, EngineStats

logger = logging.getLogger(__name__)

# Called in the engine's thread, so it must be quick. The last call has a ``finish_reason`` or is ``EngineStopped``.
OnOutput = Callable[[RequestOutput | EngineStopped], None]

# In a row; then the device is taken for broken. More than one client's retries of a request that it cannot compute.
MAX_FAILED_STEPS = 16


class EngineLoop:
    """Owns the thread. Other threads talk to it through a mailbox of calls, which it makes between two steps.

        submit, abort, drain, stop ---> mailbox ---> | begin steps, finish the oldest, make the calls | ---> on_output
        (any thread)                                 (the engine's thread, over and over)

    With nothing to compute it sleeps on the mailbox. A step that fails as a whole ends its requests with an error and
    the loop goes on; several in a row, or a fault of the core itself, end the loop, and everyone is told.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._in_flight: deque[InFlightStep] = deque()
        self._num_failed_steps = 0  # in a row
        self._listeners: dict[str, OnOutput] = {}
        self._num_admitted = 0
        self._finished = Counter({reason.value: 0 for reason in FinishReason})
        self._admitted_at: dict[str, float] = {}  # of requests that have not been in a step yet
        self._queue_seconds = Histogram(TTFT_BUCKETS)
        self._step_seconds = Histogram(ITL_BUCKETS)
        self._stats = self._take_stats()
        self._when_idle: list[threading.Event] = []
        self._mailbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()  # a call is either posted before the loop ends, and made, or refused
        self._closed: str | None = None  # why no new request is taken
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headway-engine", daemon=True)

    def start(self) -> None:
        atexit.register(self.stop)  # a step must not run on while the interpreter is taken down
        self._thread.start()

    def submit(self, request: Request, on_output: OnOutput) -> "Future[Admission]":
        """Hands over a request. EngineStopped, here or from the future, when the engine takes no more.

        An admitted request's outputs go to ``on_output``. Cancelling the future before the engine gets to it withdraws
        the request.
        """
        admission: Future[Admission] = Future()
        if self._closed is not None or not self._post(lambda: self._add(request, on_output, admission)):
            raise EngineStopped(self._closed)
        return admission

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """Ends a request between two steps; its last output carries ``reason``. No effect on one that has ended."""
        self._post(lambda: self._abort(request_id, reason))

    def stats(self) -> EngineStats:
        """As of the last time between two steps."""
        return self._stats

    def drain(self, timeout_s: float | None = None) -> bool:
        """Takes no new requests and waits until all have ended; False when the time was over first."""
        idle = threading.Event()
        self._close("the engine is shutting down and takes no new requests")
        return not self._post(lambda: self._when_idle.append(idle)) or idle.wait(timeout_s)

    def stop(self) -> None:
        """Ends the thread after the steps in flight. Whoever still has a request is told ``EngineStopped``."""
        self._close("the engine has been shut down")
        self._post(self._request_stop)
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)

    def _post(self, call: Callable[[], None]) -> bool:
        with self._lock:
            if not self._ended:
                self._mailbox.put(call)
            return not self._ended

    def _close(self, reason: str) -> None:
        self._closed = self._closed or reason

    def _request_stop(self) -> None:
        self._stopping = True

    # -- the engine's thread --

    def _run(self) -> None:
        fault = None
        try:
            while not (self._stopping and not self._in_flight):
                self._turn()
        except Exception as error:
            logger.exception("the engine loop has failed")
            fault = f"the engine has failed ({type(error).__name__}); the log has the details"
        self._end(fault)

    def _turn(self) -> None:
        while not self._stopping and (step := self._begin_step(time.monotonic())) is not None:
            self._in_flight.append(step)
        if self._in_flight:
            self._finish_oldest_step()
        else:
            self._mailbox.get()()
        while not self._mailbox.empty():
            self._mailbox.get()()
        self._stats = self._take_stats()
        if not self._listeners:
            self._report_idle()

    def _begin_step(self, now: float) -> InFlightStep | None:
        step = self._core.begin_step(now)
        for new in step.batch.admitted if step is not None else ():
            admitted_at = self._admitted_at.pop(new.request_id, None)  # None when it comes back from a preemption
            if admitted_at is not None:
                self._queue_seconds.observe(now - admitted_at)
        return step

    def _finish_oldest_step(self) -> None:
        step = self._in_flight.popleft()
        try:
            result = step.handle.result()
        except Exception as error:
            self._fail_step(step, error)
        else:
            self._num_failed_steps = 0
            self._step_seconds.observe(result.seconds)
            self._deliver(self._core.finish_step(step, result, time.monotonic()))

    def _fail_step(self, step: InFlightStep, error: Exception) -> None:
        logger.error("step %d failed", step.batch.step_id, exc_info=error)
        self._num_failed_steps += 1
        reason = f"the step that computed this request failed: {type(error).__name__}: {error}"
        self._deliver(self._core.fail_step(step, reason, time.monotonic()))
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise error

    def _add(self, request: Request, on_output: OnOutput, future: "Future[Admission]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        if self._ended:
            return future.set_exception(EngineStopped(self._closed))
        try:
            admission = self._core.add_request(request, time.monotonic())
        except Exception as error:
            return future.set_exception(error)
        if admission.is_admitted:
            self._num_admitted += 1
            self._listeners[request.request_id] = on_output
            self._admitted_at[request.request_id] = time.monotonic()
        future.set_result(admission)

    def _abort(self, request_id: str, reason: FinishReason) -> None:
        if self._ended:
            return
        output = self._core.abort_request(request_id, time.monotonic(), reason)
        if output is not None:
            self._deliver([output])

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            on_output = self._listeners[output.request_id]
            if output.finish_reason is not None:
                del self._listeners[output.request_id]
                self._admitted_at.pop(output.request_id, None)
                self._finished[output.finish_reason.value] += 1
            if not _told(on_output, output) and output.finish_reason is None:
                self._listeners[output.request_id] = _nobody
                self.abort(output.request_id)

    def _end(self, fault: str | None) -> None:
        """Nothing is posted any more, so what is still in the mailbox is all there will be."""
        with self._lock:
            self._ended = True
            self._closed = fault or self._closed
        while not self._mailbox.empty():
            self._mailbox.get()()
        reason = FinishReason.ABORT if fault is None else FinishReason.ERROR
        for on_output in self._listeners.values():
            self._finished[reason.value] += 1
            _told(on_output, EngineStopped(self._closed))
        self._listeners.clear()
        kv_blocks = {"used": 0, "cached": 0, "free": self._core.num_blocks}
        self._stats = replace(self._take_stats(), num_running=0, num_waiting=0, kv_blocks=kv_blocks, fault=self._closed)
        self._report_idle()

    def _report_idle(self) -> None:
        for idle in self._when_idle:
            idle.set()
        self._when_idle.clear()

    def _take_stats(self) -> EngineStats:
        core, times = self._core, self._core.step_times
        return EngineStats(
            num_steps=core.num_steps,
            num_running=core.num_running,
            num_waiting=core.num_waiting,
            num_admitted=self._num_admitted,
            num_preemptions=core.num_preemptions,
            finished=dict(self._finished),
            kv_blocks={
                "used": core.num_blocks - core.num_available_blocks,
                "cached": core.num_cached_blocks,
                "free": core.num_available_blocks - core.num_cached_blocks,
            },
            queue_seconds=self._queue_seconds.snapshot(),
            step_seconds=self._step_seconds.snapshot(),
            step_time_error=None if times is None else times.mean_error,
            step_time_bias=None if times is None else times.mean_bias,
            ttft_error=None if times is None else core.history.ttft_error,
            ttft_bias=None if times is None else core.history.ttft_bias,
            deadline_outcomes=dict(core.history.deadline_outcomes),
            num_prompt_tokens=core.num_prompt_tokens,
            num_cached_tokens=core.num_cached_tokens,
            num_evictions=core.num_evictions,
            disk_transfers=core.disk_transfers,
        )


def _told(on_output: OnOutput, output: RequestOutput | EngineStopped) -> bool:
    """A listener's exception is its own: it costs no other request anything."""
    try:
        on_output(output)
    except Exception:
        logger.exception("a listener could not take its output")
        return False
    return True


def _nobody(output: RequestOutput | EngineStopped) -> None:
    """Listens in place of a listener that failed."""
