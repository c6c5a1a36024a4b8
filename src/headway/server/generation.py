"""The sequences of one HTTP request while they run."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from starlette.types import Receive

from headway.core.request import FinishReason
from headway.engine.generation import GenerationRequest, OutputDelta, Usage
from headway.errors import EngineStopped, RequestFailed
from headway.observe.metrics import Metrics
from headway.server.engine_contract import ServedEngine, Stream
from headway.server.errors import ClientGone


class Generation:
    """Merges the deltas of its sequences and stops them together. Ends in one of: all finished, an error, ``cancel``.

    ``usages`` holds the latest count of each sequence.
    """

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._streams: list[Stream] = []
        self._timers: list[SequenceTimer] = []
        self._client_gone = False
        self.usages: list[Usage] = []

    @classmethod
    async def start(
        cls, engine: ServedEngine, sequences: Sequence[GenerationRequest], metrics: Metrics, arrival: float
    ) -> "Generation":
        """Submits all, or none: the first refusal withdraws those before it. ``arrival`` is in monotonic seconds."""
        generation = cls(metrics, arrival)
        try:
            for sequence in sequences:
                generation._add(await engine.submit(sequence), len(sequence.prompt_token_ids))
        except BaseException:
            generation._end()
            raise
        return generation

    def _add(self, stream: Stream, prompt_tokens: int) -> None:
        self._streams.append(stream)
        self._timers.append(SequenceTimer(self._metrics, self._arrival))
        self.usages.append(Usage(prompt_tokens, 0))

    def _end(self) -> None:
        self.cancel()
        for timer, usage in zip(self._timers, self.usages, strict=True):
            timer.end(usage, time.monotonic())

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    async def deltas(self) -> AsyncGenerator[tuple[int, OutputDelta]]:
        """(sequence, delta) as they come. Raises when any sequence ends in another way than finishing."""
        try:
            if len(self._streams) == 1:
                async for delta in self._checked(0):
                    yield 0, delta
            else:
                async with aclosing(self._merged()) as merged:
                    async for item in merged:
                        yield item
        finally:
            self._end()

    async def _merged(self) -> AsyncGenerator[tuple[int, OutputDelta]]:
        arrived: asyncio.Queue[tuple[int, OutputDelta] | BaseException | None] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for delta in self._checked(index):
                    arrived.put_nowait((index, delta))
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(error)

        pumps = [asyncio.create_task(pump(index)) for index in range(len(self._streams))]
        try:
            running = len(pumps)
            while running:
                item = await arrived.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()

    async def _checked(self, index: int) -> AsyncIterator[OutputDelta]:
        timer = self._timers[index]
        is_finished = False
        async for delta in self._streams[index]:
            self.usages[index] = delta.usage
            if delta.token_ids:
                timer.tokens(time.monotonic())
            if delta.finish_reason is FinishReason.ERROR:
                raise RequestFailed("a sequence failed while it ran")
            if delta.finish_reason is FinishReason.ABORT:
                break
            is_finished = delta.finish_reason is not None
            yield delta
        if is_finished:
            return
        if self._client_gone:
            raise ClientGone
        raise EngineStopped("a sequence was dropped before it ended")

    @asynccontextmanager
    async def watching(self, receive: Receive) -> AsyncIterator[None]:
        """While the block runs, a client that closes its connection cancels the work."""
        watcher = asyncio.create_task(self._cancel_when_gone(receive))
        try:
            yield
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _cancel_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_gone = True
        self.cancel()


class SequenceTimer:
    """Feeds the latency series of one sequence."""

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._first: float | None = None
        self._last = arrival

    def tokens(self, now: float) -> None:
        if self._first is None:
            self._first = now
            self._metrics.first_token(now - self._arrival)
        else:
            self._metrics.token_gap(now - self._last)
        self._last = now

    def end(self, usage: Usage, now: float) -> None:
        ttft_s = None if self._first is None else self._first - self._arrival
        self._metrics.ended(usage.prompt_tokens, usage.completion_tokens, now - self._arrival, ttft_s)
