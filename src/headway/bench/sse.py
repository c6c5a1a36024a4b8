"""Bytes of an HTTP response to server-sent events, whatever pieces they arrive in. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

MAX_LINE_BYTES = 1 << 20


class MalformedResponse(Exception):
    """The server did not keep to HTTP or to its own framing."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """``headers`` by lower-case name."""

    status: int
    headers: Mapping[str, str]


def parse_head(data: bytes) -> ResponseHead:
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise MalformedResponse(f"not an HTTP/1 response: {first[:60]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return ResponseHead(int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs})


class Body(Protocol):
    """``feed`` returns what belongs to the body; ``is_done`` once all of it has been seen. ``ends_with_connection``:
    there is no other sign of its end."""

    is_done: bool
    ends_with_connection: bool

    def feed(self, data: bytes) -> bytes: ...


def body_of(head: ResponseHead) -> Body:
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return ChunkedBody()
    length = head.headers.get("content-length")
    if length is not None and not length.isdigit():
        raise MalformedResponse(f"content-length {length[:40]!r}")
    return PlainBody(None if length is None else int(length))


class PlainBody:
    """``length`` bytes, or all until the connection ends."""

    def __init__(self, length: int | None) -> None:
        self._left = length
        self.is_done = length == 0
        self.ends_with_connection = length is None

    def feed(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        taken = data[: self._left]
        self._left -= len(taken)
        self.is_done = self._left == 0
        return taken


class ChunkedBody:
    """RFC 9112, section 7.1. Trailers are not read: the last chunk ends the body."""

    ends_with_connection = False

    def __init__(self) -> None:
        self.is_done = False
        self._buffer = b""
        self._left = 0  # of the current chunk, its line end included

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        parts = []
        while not self.is_done and (part := self._next_part()) is not None:
            parts.append(part)
        return b"".join(parts)

    def _next_part(self) -> bytes | None:
        """Some of the current chunk, or nothing after its head was read; None when more must arrive."""
        if self._left:
            return self._take_from_chunk()
        line, end, rest = self._buffer.partition(b"\r\n")
        if not end:
            if len(line) > MAX_LINE_BYTES:
                raise MalformedResponse("a chunk's size has no end")
            return None
        size = _chunk_size(line)
        self._buffer = rest
        self.is_done = size == 0
        self._left = size + 2 if size else 0
        return b""

    def _take_from_chunk(self) -> bytes | None:
        if not self._buffer:
            return None
        piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        content = piece[: max(0, self._left - 2)]
        self._left -= len(piece)
        return content


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
        raise MalformedResponse(f"chunk size {line[:40]!r}")
    return int(digits, 16)


class EventSplitter:
    """The ``data`` of each event as soon as its blank line is there; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES:
            raise MalformedResponse("an event's line has no end")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
