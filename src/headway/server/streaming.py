"""Server-sent events: only ``data:`` lines, a blank line after each, ``[DONE]`` after success and never after an error.

A body that ends without ``[DONE]`` looks like success to the official clients. So a stream that fails says why in an
error event and then breaks the connection: the body is never ended.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.errors import HeadwayError
from headway.server.errors import ClientGone, as_api_error
from headway.server.generation import Generation
from headway.server.intake import Job
from headway.server.replies import Reply, usage_body

EVENT_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = "data: [DONE]\n\n"


async def events(generation: Generation, reply: Reply, job: Job) -> AsyncGenerator[str, None]:
    """All of a stream's events, ``[DONE]`` included. Errors of the engine pass through."""
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if text := reply.chunk(index, delta):
                yield text
    if job.include_usage:
        yield reply.usage_chunk(usage_body(generation.usages, job.n))
    yield DONE


class EventStream(Response):
    """Writes events that have begun to come: ``first`` was taken before the headers, so early errors have a status."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: str,
        rest: AsyncGenerator[str, None],
        generation: Generation,
        max_unread_bytes: int,
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers={**EVENT_HEADERS, **headers})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._generation = generation
        self._max_unread_bytes = max_unread_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport: asyncio.Transport | None = scope.get("headway.transport")
        try:
            async with self._generation.watching(receive), aclosing(self._rest):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await _write(send, self._first)
                async for text in self._rest:
                    await _write(send, text)
                    if transport is not None and transport.get_write_buffer_size() > self._max_unread_bytes:
                        transport.abort()
                        raise ClientGone
            await send({"type": "http.response.body", "body": b""})
        except ClientGone:
            await _closed(receive)
        except Exception as error:
            await _write(send, "data: " + as_api_error(error).body().decode() + "\n\n")
            if not isinstance(error, HeadwayError):
                raise
            if transport is not None:
                transport.close()  # once the event is written
                await _closed(receive)


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _closed(receive: Receive) -> None:
    """Waits for the connection's end: a server that sees us return before it takes the missing end for a fault."""
    while (await receive())["type"] != "http.disconnect":
        pass
