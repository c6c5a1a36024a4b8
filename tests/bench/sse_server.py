"""A server that answers with the bytes a test gives it, in the pieces it gives."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
HANG = b"hang"  # in place of a piece: nothing more, but the connection stays


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def completion(text: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def chat(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def response(*events: bytes) -> list[bytes]:
    return [HEAD, *map(chunk, events), END]


def plain(status: str, body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)]


@dataclass
class FakeServer:
    """``answers`` are given in turn, the last one again and again; ``requests`` are the bodies that came."""

    answers: Sequence[Sequence[bytes]]
    requests: list[bytes] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(length))
            self.requests.append(head + body)
            for piece in self.answers[min(len(self.requests), len(self.answers)) - 1]:
                if piece == HANG:
                    await reader.read()  # until the client has gone
                    break
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: Sequence[bytes]) -> AsyncIterator[FakeServer]:
    fake = FakeServer(answers)
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
