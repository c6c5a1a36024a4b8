import asyncio
import errno
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sse_server import (
    DONE,
    HEAD,
    chat,
    chunk,
    completion,
    event,
    plain,
    response,
    serving,
    usage,
)

from headway.bench.client import Api, RequestFailure, Server, _kind, is_loopback, served_model
from headway.bench.measures import CLIENT_ERROR, RequestRecord
from headway.errors import BenchError, ConfigError

WHOLE = (completion("one "), completion("two", "length"), usage(12, 3), DONE)


def ask(pieces: Sequence[bytes], is_chat: bool = False) -> RequestRecord:
    """The record of one request to a server that answers with ``pieces``. Raises its RequestFailure."""

    async def run() -> RequestRecord:
        async with serving(pieces) as fake, asyncio.timeout(10):
            api = Api(Server.at(fake.url), "m", is_chat)
            record = RequestRecord(0.0, 10, 3, sent_s=0.0)
            await api.stream(api.request("words", 3), record, asyncio.get_running_loop().time())
            return record

    return asyncio.run(run())


def failure(pieces: Sequence[bytes]) -> str:
    with pytest.raises(RequestFailure) as caught:
        ask(pieces)
    return caught.value.kind


def test_a_whole_answer() -> None:
    record = ask(response(*WHOLE))
    assert (record.num_input_tokens, record.num_output_tokens, record.is_counted) == (12, 3, True)
    assert len(record.event_s) == 2
    assert 0 < record.event_s[0] <= record.event_s[1] == record.end_s


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=6))
def test_the_bytes_may_be_cut_anywhere(cuts: list[int]) -> None:
    data = b"".join(response(*WHOLE))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    record = ask([data[a:b] for a, b in itertools.pairwise(edges) if b > a])
    assert (len(record.event_s), record.num_output_tokens) == (2, 3)


def test_a_chat_answer_begins_with_its_first_text() -> None:
    deltas = [chat({"role": "assistant", "content": ""}), chat({"reasoning_content": "hm"}), chat({"content": "yes"})]
    record = ask(response(*deltas, chat({}, "stop"), DONE), is_chat=True)
    assert len(record.event_s) == 2 and record.end_s >= record.event_s[-1]
    assert (record.num_output_tokens, record.is_counted) == (2, False)


def test_without_usage_pieces_of_text_are_counted() -> None:
    assert ask(response(completion("a"), completion(""), completion("b", "length"), DONE)).num_output_tokens == 2


def test_usage_may_come_with_every_piece() -> None:
    counted = event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    assert ask(response(counted, completion("b", "length"), DONE)).num_output_tokens == 4


def test_a_finish_reason_without_done_will_do() -> None:
    assert ask(response(completion("a", "stop"))).error is None


def test_a_body_may_end_with_the_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    assert ask([head, *WHOLE]).num_output_tokens == 3


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], "no answer"),
        ([b"HTTP/1.1 200 OK\r\n"], "no answer"),
        ([b"what?\r\n\r\n"], "malformed"),
        (plain("503 Busy", b'{"error": {"message": "full"}}'), "http 503"),
        (plain("404 Not Found", b""), "http 404"),
        ([HEAD, chunk(completion("a"))], "cut stream"),
        ([HEAD, chunk(completion("a", "stop"))], "cut stream"),  # the connection broke before the body's end
        (response(completion("a")), "cut stream"),
        ([HEAD, b"zz\r\n"], "malformed"),
        (response(b"data: {not json\n\n"), "malformed"),
        (response(event([1])), "malformed"),
        (response(event({"choices": "x"})), "malformed"),
        (response(event({"choices": [], "usage": {"total": 1}})), "malformed"),
        (response(completion("a"), event({"error": {"message": "failed"}})), "error in stream"),
        (response(completion("", "stop"), usage(3, 1), DONE), "empty answer"),
    ],
)
def test_failures_have_kinds(pieces: list[bytes], kind: str) -> None:
    assert failure(pieces) == kind


def test_the_detail_of_a_refusal_is_kept() -> None:
    with pytest.raises(RequestFailure, match="http 503: full"):
        ask(plain("503 Busy", b"full"))


def test_nobody_listens() -> None:
    async def run() -> None:
        async with serving() as fake:
            server = Server.at(fake.url)
        api = Api(server, "m")
        await api.stream(api.request("x", 1), RequestRecord(0.0, 1, 1), 0.0)

    with pytest.raises(RequestFailure) as caught:
        asyncio.run(run())
    assert caught.value.kind == "no connection"


def test_want_of_sockets_is_the_clients_fault() -> None:
    assert _kind(OSError(errno.EMFILE, "too many open files"), is_connected=False) == CLIENT_ERROR
    assert _kind(ConnectionResetError(errno.ECONNRESET, "reset"), is_connected=True) == "connection broken"


@pytest.mark.parametrize("is_chat", [False, True])
def test_what_is_asked(is_chat: bool) -> None:
    async def run() -> bytes:
        async with serving(response(*WHOLE)) as fake:
            api = Api(Server.at(fake.url, api_key="secret"), "m", is_chat)
            await api.stream(api.request("some words", 7), RequestRecord(0.0, 1, 1), 0.0)
            return fake.requests[0]

    head, _, body = asyncio.run(run()).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == f"POST /v1/{'chat/' if is_chat else ''}completions HTTP/1.1"
    assert "Authorization: Bearer secret" in lines
    asked = json.loads(body)
    words = {"messages": [{"role": "user", "content": "some words"}]} if is_chat else {"prompt": "some words"}
    assert asked.items() >= words.items()
    assert asked["max_tokens"] == 7 and asked["stream"] is True and asked["ignore_eos"] is True
    assert asked["stream_options"] == {"include_usage": True}


def test_ignore_eos_is_left_out_when_not_wanted() -> None:
    api = Api(Server.at("http://localhost"), "m", ignore_eos=False)
    assert b"ignore_eos" not in api.request("x", 1)


# -- where the server is --


@pytest.mark.parametrize(
    ("url", "host", "port", "base_path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "/v1"),
        ("http://127.0.0.1:8000/", "127.0.0.1", 8000, "/v1"),
        ("http://localhost:8000/v1/", "localhost", 8000, "/v1"),
        ("https://[::1]/proxy", "::1", 443, "/proxy/v1"),
        ("http://127.9.9.9", "127.9.9.9", 80, "/v1"),
    ],
)
def test_urls(url: str, host: str, port: int, base_path: str) -> None:
    server = Server.at(url)
    assert (server.host, server.port, server.base_path) == (host, port, base_path)
    assert server.is_tls is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://localhost:99999",
        "http://localhost/?a=b",
        "http://[::1",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        Server.at(url)


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "0.0.0.0", "localhost.example.com", "[2001:db8::1]"])
def test_another_machine_must_be_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-remote"):
        Server.at(f"http://{host}:8000")
    assert Server.at(f"http://{host}:8000", allow_remote=True).port == 8000


def test_loopback() -> None:
    assert is_loopback("LOCALHOST") and is_loopback("::1") and not is_loopback("127.0.0.1.nip.io")


# -- the first contact --


def first_model(pieces: Sequence[bytes]) -> str:
    async def run() -> str:
        async with serving(pieces) as fake:
            return await served_model(Server.at(fake.url), 10)

    return asyncio.run(run())


def test_the_first_model_is_taken() -> None:
    assert first_model(plain("200 OK", b'{"data": [{"id": "a"}, {"id": "b"}]}')) == "a"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": []}', b"[]", b"<html>"])
def test_no_model_is_named(body: bytes) -> None:
    with pytest.raises(BenchError, match="--model"):
        first_model(plain("200 OK", body))


def test_no_server() -> None:
    with pytest.raises(BenchError, match="is the server up"):
        first_model([])
