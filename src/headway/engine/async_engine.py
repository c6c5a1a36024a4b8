"""The engine for asyncio: submit a request, iterate over its deltas, cancel it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial

from headway.config import EngineConfig
from headway.core.batch import RequestOutput
from headway.core.engine_core import EngineCore
from headway.core.request import FinishReason
from headway.core.step_time import StepTimes
from headway.engine.admit import admit, new_core_request
from headway.engine.engine_loop import EngineLoop
from headway.engine.generation import GenerationRequest, OutputDelta
from headway.engine.output_processor import OutputProcessor
from headway.engine.parts import EngineParts
from headway.engine.service_levels import ServiceLevels
from headway.errors import EngineError, EngineStopped, RequestFailed, RequestRefused
from headway.observe.stats import EngineStats

logger = logging.getLogger(__name__)


class AsyncEngine:
    """A running engine over one loaded model.

    ``levels`` are its classes and objectives. With ``step_times`` it holds them: see ``EngineCore``.
    """

    def __init__(
        self,
        parts: EngineParts,
        config: EngineConfig | None = None,
        levels: ServiceLevels | None = None,
        step_times: StepTimes | None = None,
    ) -> None:
        self._levels = levels or ServiceLevels()
        self.card = parts.card
        self.tokenizer = parts.tokenizer
        self.chat_template = parts.chat_template
        self.generation_defaults = parts.generation_defaults
        self._eos_token_ids = parts.eos_token_ids
        self._vocab_size = parts.executor.info.vocab_size
        self._engine = EngineLoop(EngineCore(parts.executor, config, step_times))
        self._engine.start()
        self._inbox: _Inbox | None = None

    async def submit(self, request: GenerationRequest) -> "Stream":
        """The request's stream, once the engine has admitted it.

        Raises InvalidRequest for a bad field, RequestRefused with the numbers when it cannot be admitted, EngineStopped
        when the engine takes no more; in each case nothing was computed.
        """
        request = admit(request, self._vocab_size)
        core_request = new_core_request(request, self._eos_token_ids)
        self._levels.apply(core_request, request)
        abort = partial(self._engine.abort, core_request.request_id)
        stream = Stream(core_request.request_id, OutputProcessor(request, self.tokenizer), abort)
        inbox = self._running_inbox()
        admission = self._engine.submit(core_request, lambda output: inbox.put(stream, output))
        try:
            refusal = (await asyncio.wrap_future(admission)).refusal
        except asyncio.CancelledError:
            abort()
            raise
        if refusal is not None:
            raise RequestRefused(refusal)
        return stream

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Takes no new requests and waits for those there are; False when some were left after ``timeout_s``."""
        return await asyncio.to_thread(self._engine.drain, timeout_s)

    def stop(self) -> None:
        """Stops after the steps in flight; streams that have not ended raise EngineStopped."""
        self._engine.stop()

    def _running_inbox(self) -> "_Inbox":
        event_loop = asyncio.get_running_loop()
        if self._inbox is None or self._inbox.event_loop is not event_loop:
            self._inbox = _Inbox(event_loop)
        return self._inbox


class Stream:
    """One request's deltas, each given once. Ends with the delta that has a ``finish_reason``, or raises RequestFailed
    or EngineStopped. Leaving the iteration early cancels the request. Not thread-safe: for the event loop alone.
    """

    def __init__(self, request_id: str, processor: OutputProcessor, abort: Callable[[FinishReason], None]) -> None:
        self.request_id = request_id
        self._processor = processor
        self._abort = abort
        self._items: asyncio.Queue[OutputDelta | EngineError] = asyncio.Queue()
        self._ended = False

    async def __aiter__(self) -> AsyncGenerator[OutputDelta]:
        try:
            while not (self._ended and self._items.empty()):
                item = await self._items.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Drops the request: its last delta says ABORT. No effect once it has ended."""
        if not self._ended:
            self._take(RequestOutput(self.request_id, (), (), FinishReason.ABORT))
            self._abort(FinishReason.ABORT)

    def abandon(self) -> None:
        """Drops the request when its event loop is gone. In the engine's thread."""
        self._abort(FinishReason.ABORT)

    def receive(self, output: RequestOutput | EngineStopped) -> None:
        """What the engine has to say. Late words about a stream that has ended are dropped."""
        if self._ended:
            return
        if isinstance(output, EngineStopped):
            self._end_with(output)
        elif output.finish_reason is FinishReason.ERROR:
            self._end_with(RequestFailed(output.error))
        else:
            self._take(output)
            if self._ended and output.finish_reason is None:
                self._abort(FinishReason.STOP)

    def fail(self) -> None:
        self._end_with(RequestFailed("the text of this answer could not be made"))
        self._abort(FinishReason.ERROR)

    def _take(self, output: RequestOutput) -> None:
        delta = self._processor.process(output)
        self._ended = delta.finish_reason is not None
        self._items.put_nowait(delta)

    def _end_with(self, error: EngineError) -> None:
        self._ended = True
        self._items.put_nowait(error)


class _Inbox:
    """Carries outputs from the engine's thread to the event loop: one wake-up for all the outputs of a step."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self.event_loop = event_loop
        self._outputs: deque[tuple[Stream, RequestOutput | EngineStopped]] = deque()
        self._is_woken = False

    def put(self, stream: Stream, output: RequestOutput | EngineStopped) -> None:
        """In the engine's thread."""
        if self.event_loop.is_closed():
            return stream.abandon()
        self._outputs.append((stream, output))
        if not self._is_woken:
            self._is_woken = True
            self.event_loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_woken = False  # before the first look: what comes after the last look wakes again
        while self._outputs:
            stream, output = self._outputs.popleft()
            try:
                stream.receive(output)
            except Exception:
                logger.exception("request %s: its output could not be processed", stream.request_id)
                stream.fail()
