"""The server over the real engine and a fake device: what one promises the other keeps."""

import json
import socket
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from headway.config import EngineConfig, ServerConfig
from headway.engine.async_engine import AsyncEngine
from live_server import LiveServer, eventually, live_server
from text_fakes import EOS, FakeTokenizer, echo_executor, make_parts

COMPLETIONS = "/v1/completions"
TEXT = "Grüße. The 🦙 says: STOP here"


class Tokenizer(FakeTokenizer):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return super().encode(text)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")


@contextmanager
def served(
    before_step: Callable[[], object] = lambda: None,
    max_waiting: int = 0,
    failing_steps: Container[int] = (),
    **info: int,
) -> Iterator[LiveServer]:
    executor = echo_executor(before_step, **info)
    executor.failing_steps = failing_steps
    parts = make_parts(executor)
    object.__setattr__(parts, "tokenizer", Tokenizer())
    engine = AsyncEngine(parts, EngineConfig(max_waiting_requests=max_waiting))
    try:
        with live_server(ServerConfig(port=0), engine) as server:
            yield server
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with served() as server, server.client() as client:
        yield client


def streamed_text(response: httpx.Response) -> str:
    lines = [line[6:] for line in response.text.splitlines() if line and line != "data: [DONE]"]
    return "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({}, TEXT, "stop"),
        ({"max_tokens": 3}, "Gr\ufffd", "length"),
        ({"max_tokens": 4}, "Grü", "length"),
        ({"stop": "STOP"}, "Grüße. The 🦙 says: ", "stop"),
        ({"stop": ["STOP", "llama"], "include_stop_str_in_output": True}, "Grüße. The 🦙 says: STOP", "stop"),
        ({"stop": "here!"}, TEXT, "stop"),
        ({"stop_token_ids": [ord("T")]}, "Grüße. ", "stop"),
        ({"ignore_eos": True, "max_tokens": len(TEXT.encode()) + 2}, TEXT, "length"),
    ],
)
def test_stream_whole_and_usage_agree(client: httpx.Client, fields: dict[str, Any], text: str, reason: str) -> None:
    whole = client.post(COMPLETIONS, json={"prompt": TEXT, **fields}).json()
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text, reason)
    stream = client.post(
        COMPLETIONS, json={"prompt": TEXT, "stream": True, "stream_options": {"include_usage": True}, **fields}
    )
    assert streamed_text(stream) == text
    usage = json.loads(stream.text.split("\n\n")[-3][6:])["usage"]
    usage.pop("prompt_tokens_details")  # the second time the prompt is in the cache
    assert usage.items() <= whole["usage"].items()
    if reason == "length":
        assert whole["usage"]["completion_tokens"] == fields["max_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_blocks_back(stream: bool) -> None:
    steps = threading.Semaphore(0)
    with served(lambda: steps.acquire(timeout=10)) as server:
        body = json.dumps({"prompt": "x" * 100, "stream": stream}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(head.encode() + body)
        steps.release(4)
        eventually(lambda: server.engine.stats().num_steps >= 3 and server.engine.stats().kv_blocks["used"] > 0)
        connection.close()
        time.sleep(0.2)  # for the server to notice; then two steps must do
        num_steps = server.engine.stats().num_steps
        steps.release(2)
        eventually(lambda: server.engine.stats().kv_blocks["used"] == 0)
        stats = server.engine.stats()
        assert stats.num_running == stats.num_waiting == 0 and stats.finished["abort"] == 1
        assert stats.num_steps <= num_steps + 2


def test_refusals_carry_the_engines_numbers(client: httpx.Client) -> None:
    for fields in ({"prompt": "x" * 500}, {"prompt": "x", "max_tokens": 100_000}):
        error = client.post(COMPLETIONS, json={"stream": True, **fields})
        assert error.status_code == 400 and error.json()["error"]["code"] == "context_length_exceeded"
    for fields in ({"logit_bias": {"99999": 1}}, {"prompt": [EOS + 1000]}, {"max_tokens": 0}):
        assert client.post(COMPLETIONS, json={"prompt": "x", **fields}).status_code == 400


def test_a_full_queue_is_temporary() -> None:
    """One runs, one waits, and for the third there is no room."""
    with served(lambda: time.sleep(0.01), max_waiting=1, max_batch_rows=1) as server, server.client() as client:
        response = client.post(COMPLETIONS, json={"prompt": "x", "n": 3, "max_tokens": 100, "ignore_eos": True})
        assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["numbers"]["setting"] == "server.limits.max_waiting_requests"


def test_a_step_that_fails_costs_its_own_requests_only() -> None:
    with served(failing_steps={0}) as server, server.client() as client:
        assert client.post(COMPLETIONS, json={"prompt": TEXT}).json()["error"]["code"] == "request_failed"
        for stream in (True, False):
            assert client.post(COMPLETIONS, json={"prompt": TEXT, "stream": stream}).status_code == 200
        assert client.get("/ready").status_code == 200
        stats = server.engine.stats()
        assert (stats.finished["error"], stats.finished["stop"], stats.kv_blocks["used"]) == (1, 2, 0)


def test_an_engine_that_ends_says_so_everywhere() -> None:
    steps = threading.Semaphore(0)
    with served(lambda: steps.acquire(timeout=10)) as server, server.client() as client:
        steps.release(3)  # headers come with the first token
        with client.stream("POST", COMPLETIONS, json={"prompt": "x" * 50, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            stopping = threading.Thread(target=server.engine.stop)
            stopping.start()
            steps.release(100)
            received: list[str] = []
            with pytest.raises(httpx.RemoteProtocolError):
                received.extend(line for line in lines if line)
            stopping.join()
        assert "engine_stopped" in received[-1]
        assert client.get("/ready").status_code == 503
        assert client.post(COMPLETIONS, json={"prompt": "x"}).status_code == 503
        assert client.get("/health").status_code == 200


def test_the_counts_of_a_mixed_run_add_up() -> None:
    with served() as server, server.client() as client:
        for fields in ({}, {"n": 3}, {"stop": "STOP"}, {"max_tokens": 2}, {"max_tokens": 0}, {"stream": True}):
            client.post(COMPLETIONS, json={"prompt": TEXT, **fields})
        eventually(lambda: server.engine.stats().num_running == 0)
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
        series = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
        finished = sum(value for name, value in series.items() if name.startswith("headway_requests_finished_total"))
        assert series['headway_requests_admitted_total{model="echo"}'] == finished == 7
        assert series['headway_queue_seconds_count{model="echo"}'] == 7
        assert series['headway_time_to_first_token_seconds_count{model="echo"}'] == 7
        steps = series['headway_steps_total{model="echo"}']
        assert series['headway_step_seconds_count{model="echo"}'] == steps > 0
