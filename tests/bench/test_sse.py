import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.sse import Body, ChunkedBody, EventSplitter, MalformedResponse, PlainBody, body_of, parse_head


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def fed(body: Body, pieces: list[bytes]) -> bytes:
    return b"".join(body.feed(piece) for piece in pieces)


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 500), max_size=20))
def test_chunks_are_joined_wherever_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    body = ChunkedBody()
    assert fed(body, in_pieces(chunked(parts), cuts)) == b"".join(parts)
    assert body.is_done


def test_a_chunked_body_is_not_done_before_its_last_chunk() -> None:
    body = ChunkedBody()
    assert body.feed(b"3\r\nabc\r\n") == b"abc" and not body.is_done


@pytest.mark.parametrize("line", [b"\r\n", b"xyz\r\n", b"-1\r\n", b"+3\r\n", b"0x3\r\n", b"f" * 17 + b"\r\n"])
def test_a_chunk_size_that_is_none(line: bytes) -> None:
    with pytest.raises(MalformedResponse, match="chunk size"):
        ChunkedBody().feed(line)


def test_a_body_with_a_length_ends_there() -> None:
    body = PlainBody(5)
    assert fed(body, [b"abc", b"defg"]) == b"abcde" and body.is_done
    assert PlainBody(0).is_done


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    body = body_of(parse_head(b"HTTP/1.1 200 OK\r\n\r\n"))
    assert body.feed(b"abc") == b"abc" and not body.is_done and body.ends_with_connection


def test_the_head_says_how_the_body_ends() -> None:
    head = parse_head(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: Chunked\r\nX: a:b\r\n\r\n")
    assert head.status == 503 and head.headers["x"] == "a:b"
    assert isinstance(body_of(head), ChunkedBody)


@pytest.mark.parametrize("data", [b"\r\n\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/2 200\r\n\r\n"])
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponse, match="not an HTTP/1 response"):
        parse_head(data)


def test_a_length_that_is_no_number() -> None:
    with pytest.raises(MalformedResponse, match="content-length"):
        body_of(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n"))


STREAM = b': hello\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n\n\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_are_found_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    splitter = EventSplitter()
    events = [event for piece in in_pieces(STREAM, cuts) for event in splitter.feed(piece)]
    assert events == [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def test_an_event_comes_with_its_blank_line_and_not_before() -> None:
    splitter = EventSplitter()
    assert list(splitter.feed(b"data: x\n")) == []
    assert list(splitter.feed(b"\n")) == [b"x"]


def test_a_line_without_end_is_not_held_for_ever() -> None:
    with pytest.raises(MalformedResponse, match="no end"):
        list(EventSplitter().feed(b"data: " + b"x" * (1 << 20)))
