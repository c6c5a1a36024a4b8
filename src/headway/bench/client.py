"""A small HTTP client for OpenAI-compatible servers, that notes when each piece of an answer arrives.

It shares the machine with what it measures, so a streamed token costs little: one read, one split, one ``json.loads``.
"""

import asyncio
import errno
import ipaddress
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headway.bench.measures import CLIENT_ERROR, RequestRecord
from headway.bench.sse import EventSplitter, MalformedResponse, ResponseHead, body_of, parse_head
from headway.errors import BenchError, ConfigError

READ_BYTES = 1 << 16
MAX_ANSWER_BYTES = 1 << 20  # of an answer that is read whole
OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)


class RequestFailure(Exception):
    """``kind`` is the same for all failures of one sort; ``detail`` is for a person."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is. ``base_path`` ends in ``/v1``."""

    host: str
    port: int
    is_tls: bool
    base_path: str
    api_key: str = ""

    @classmethod
    def at(cls, url: str, allow_remote: bool = False, api_key: str = "") -> "Server":
        """From ``http://127.0.0.1:8000`` or ``http://127.0.0.1:8000/v1``."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
            raise ConfigError(f"{url!r} is not a server's URL: write http://127.0.0.1:8000")
        if not allow_remote and not is_loopback(host):
            raise ConfigError(
                f"{host} is not this machine. A benchmark is a flood of requests: --allow-remote sends it to a server "
                "elsewhere, if that is yours."
            )
        path = parts.path.rstrip("/")
        is_tls = parts.scheme == "https"
        base_path = path if path.endswith("/v1") else path + "/v1"
        return cls(host, port or (443 if is_tls else 80), is_tls, base_path, api_key)

    @property
    def address(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        lines = [
            f"{method} {self.base_path}{path} HTTP/1.1",
            f"Host: {self.address}",
            "Connection: close",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            *([f"Authorization: Bearer {self.api_key}"] if self.api_key else []),
        ]
        return "\r\n".join([*lines, "\r\n"]).encode() + body


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Exchange:
    """A response whose head has arrived."""

    def __init__(self, head: ResponseHead, reader: asyncio.StreamReader) -> None:
        self.head = head
        self._reader = reader

    async def pieces(self) -> AsyncGenerator[tuple[float, bytes], None]:
        """The body as it arrives, with the event loop's time of arrival. RequestFailure when it is cut short."""
        body = body_of(self.head)
        loop = asyncio.get_running_loop()
        while not body.is_done:
            data = await self._reader.read(READ_BYTES)
            now = loop.time()
            if not data:
                if body.ends_with_connection:
                    return
                raise RequestFailure("cut stream", "the connection ended before the answer did")
            if piece := body.feed(data):
                yield now, piece

    async def whole(self) -> bytes:
        parts, size = [], 0
        async for _, piece in self.pieces():
            parts.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise RequestFailure("malformed", f"an answer over {MAX_ANSWER_BYTES} bytes")
        return b"".join(parts)


@asynccontextmanager
async def exchange(server: Server, request: bytes) -> AsyncIterator[Exchange]:
    """One request on a connection of its own. What goes wrong on the way is a RequestFailure with its kind."""
    writer = None
    try:
        tls = ssl.create_default_context() if server.is_tls else None
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=tls)
        writer.write(request)
        yield Exchange(parse_head(await reader.readuntil(b"\r\n\r\n")), reader)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise RequestFailure("no answer", "the connection ended before a response began") from error
    except MalformedResponse as error:
        raise RequestFailure("malformed", str(error)) from error
    except OSError as error:
        raise RequestFailure(_kind(error, is_connected=writer is not None), str(error)) from error
    finally:
        if writer is not None:
            writer.transport.abort()  # nothing is owed to the server, and thousands of closing sockets add up


def _kind(error: OSError, is_connected: bool) -> str:
    if error.errno in OUT_OF_SOCKETS:
        return CLIENT_ERROR
    return "connection broken" if is_connected else "no connection"


async def served_model(server: Server, timeout_s: float) -> str:
    """The first of the server's models."""
    try:
        async with asyncio.timeout(timeout_s), exchange(server, server.request("GET", "/models")) as answer:
            body = await answer.whole()
        return str(json.loads(body)["data"][0]["id"])
    except TimeoutError:
        raise BenchError(f"{server.address} has not answered in {timeout_s:g} s") from None
    except RequestFailure as error:
        raise BenchError(f"{server.address} does not answer ({error}): is the server up?") from error
    except (ValueError, LookupError, TypeError):
        raise BenchError("the server's /v1/models names no model: give one with --model") from None


@dataclass(frozen=True, slots=True)
class Api:
    """How answers are asked for. ``ignore_eos`` (an extension that most servers have) makes them their full length."""

    server: Server
    model: str
    is_chat: bool = False
    ignore_eos: bool = True

    def request(self, prompt: str, max_tokens: int) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            **({"messages": [{"role": "user", "content": prompt}]} if self.is_chat else {"prompt": prompt}),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }
        path = "/chat/completions" if self.is_chat else "/completions"
        return self.server.request("POST", path, json.dumps(body).encode())

    async def stream(self, request: bytes, record: RequestRecord, began: float) -> None:
        """Sends it and fills ``record`` with what comes back, at times since ``began``. RequestFailure if it fails."""
        async with exchange(self.server, request) as answer:
            if answer.head.status != 200:
                raise RequestFailure(
                    f"http {answer.head.status}", (await answer.whole())[:300].decode(errors="replace")
                )
            await read_answer(answer, record, began)


async def read_answer(answer: Exchange, record: RequestRecord, began: float) -> None:
    splitter = EventSplitter()
    is_finished = False
    async with aclosing(answer.pieces()) as pieces:
        async for now, piece in pieces:
            for data in splitter.feed(piece):
                if data == b"[DONE]":
                    return _check_whole(record, True)
                is_finished |= take_event(data, record, now - began)
    _check_whole(record, is_finished)


def _check_whole(record: RequestRecord, is_finished: bool) -> None:
    if not is_finished:
        raise RequestFailure("cut stream", "neither a finish_reason nor [DONE]")
    if not record.event_s or not record.num_output_tokens:
        raise RequestFailure("empty answer", "no text arrived")


def take_event(data: bytes, record: RequestRecord, at_s: float) -> bool:
    """Adds one event to ``record``; true when it carries a ``finish_reason``."""
    try:
        event = json.loads(data)
        if event.get("error"):
            raise RequestFailure("error in stream", str(event["error"])[:300])
        choice = (event.get("choices") or [{}])[0]
        is_finished = choice.get("finish_reason") is not None
        has_text = bool(choice.get("text") or _has_text(choice.get("delta") or {}))
        if usage := event.get("usage"):
            record.num_input_tokens = int(usage["prompt_tokens"])
            record.num_output_tokens = int(usage["completion_tokens"])
            record.is_counted = True
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RequestFailure("malformed", f"an event that cannot be read: {data[:60]!r}") from error
    if has_text:
        record.event_s.append(at_s)
        record.num_output_tokens += not record.is_counted
    if has_text or is_finished:
        record.end_s = at_s
    return is_finished


def _has_text(delta: dict[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))
