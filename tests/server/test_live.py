"""What only a real connection shows: clients that leave, stall or come back, and a server that stops."""

import json
import socket
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from headway.config import ServerConfig
from headway.core.request import FinishReason
from headway.errors import EngineStopped, RequestFailed
from live_server import LiveServer, eventually, live_server

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
END_OF_BODY = b"\r\n0\r\n\r\n"  # of a chunked one
STREAM = {**BODY, "stream": True}


def connect(server: LiveServer, body: dict[str, Any]) -> socket.socket:
    """A raw connection that has sent a request and read nothing."""
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(head.encode() + content)
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}, {"n": 3, "stream": True}])
def test_work_stops_when_the_client_leaves(fields: dict[str, Any]) -> None:
    with live_server() as server:
        server.engine.pace_s = 0.02
        server.engine.answer = "x" * 400
        connection = connect(server, {**BODY, **fields})
        eventually(lambda: server.engine.num_steps > 2 * fields.get("n", 1))
        connection.close()
        eventually(lambda: server.engine.running == [])
        num_steps = server.engine.num_steps
        assert num_steps < 400
        assert dict(server.engine.finished) == {FinishReason.ABORT.value: fields.get("n", 1)}
        with server.client() as client:
            assert client.get("/ready").json()["running"] == 0
            page = client.get("/metrics").text
            assert 'headway_requests_running{model="fake"} 0.0' in page


def test_a_client_that_does_not_read_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(ServerConfig(port=0, send_buffer_bytes=50_000)) as server:
        server.engine.answer = "y" * 400
        # About 10 MB of events: the kernel holds some megabytes of its own before the server's buffer fills.
        with connect(server, {**STREAM, "n": 16, "logprobs": True, "top_logprobs": 20}) as stalled:
            eventually(lambda: server.engine.num_steps > 0 and server.engine.running == [], 30)
            assert server.engine.finished == {"abort": 16}
            with suppress(ConnectionResetError):
                data = read_all(stalled)
                assert b"[DONE]" not in data and not data.endswith(END_OF_BODY)
    assert caplog.records == []  # it was meant


@pytest.mark.parametrize("failure", [RequestFailed("x"), EngineStopped("x"), ZeroDivisionError("secret")])
@pytest.mark.parametrize("n", [1, 2])
def test_a_failure_after_the_first_byte_never_looks_like_success(
    failure: Exception, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    with live_server() as server:
        server.engine.failure, server.engine.fail_at = failure, 4
        data = read_all(connect(server, {**STREAM, "n": n}))
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in body and b"secret" not in body
        assert not body.endswith(END_OF_BODY)
        last = [line for line in body.split(b"\r\n") if line.startswith(b"data: ")][-1]
        assert "message" in json.loads(last.removeprefix(b"data: "))["error"]
        assert server.engine.running == []
        with server.client() as client, pytest.raises(httpx.RemoteProtocolError):
            client.post(CHAT, json=STREAM)
    faults = [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert bool(faults) == isinstance(failure, ZeroDivisionError)  # only what nobody foresaw is the log's business


def test_a_connection_is_kept_for_the_next_request() -> None:
    with live_server(ServerConfig(port=0, keep_alive_s=60)) as server:
        content = json.dumps(BODY).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            for _ in range(3):
                connection.sendall(head + content)
                data = b""
                while b"}}}" not in data:
                    data += connection.recv(65536)
                assert data.startswith(b"HTTP/1.1 200")


def test_an_idle_connection_is_closed_after_keep_alive() -> None:
    with live_server(ServerConfig(port=0, keep_alive_s=1)) as server, connect(server, BODY) as connection:
        assert b"HTTP/1.1 200" in read_all(connection)


def test_only_loopback_names_are_answered() -> None:
    good = ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"]
    bad = ["evil.example", "localhost.evil.example", "evil.example@localhost:80", "[::1", "localhost:80:80", ""]
    origins = [("http://localhost:3000", 200), ("https://evil.example", 403), ("null", 403)]
    cases = [({"Host": host}, 200) for host in good] + [({"Host": host}, 403) for host in bad]
    with live_server() as server, server.client() as client:
        for headers, status in cases + [({"Origin": origin}, status) for origin, status in origins]:
            for response in (client.get("/health", headers=headers), client.post(CHAT, json=BODY, headers=headers)):
                assert response.status_code == status, headers
                assert status == 200 or response.json()["error"]["code"] == "host_not_allowed"


def test_while_draining_what_runs_ends_and_what_is_new_waits() -> None:
    with live_server(ServerConfig(port=0, drain_s=20)) as server, server.client() as client:
        server.engine.pace_s = 0.02
        running = connect(server, STREAM)
        eventually(lambda: server.engine.num_steps > 1)
        server.gate.close()
        refused = client.post(CHAT, json=BODY)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        assert b"[DONE]" in read_all(running)


def test_half_a_request_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(ServerConfig(port=0, drain_s=60)) as server:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(head)
            with server.client() as client:
                assert client.post(CHAT, json=BODY).status_code == 200  # the half one is being waited for now
            server.gate.close()
            assert b'"code":"shutting_down"' in read_all(connection)
    assert caplog.records == []


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_what_outlasts_the_drain_is_cut_with_an_error(body: dict[str, Any]) -> None:
    with live_server(ServerConfig(port=0, drain_s=0.2)) as server:
        server.engine.pace_s = 0.05
        server.engine.answer = "x" * 400
        running = connect(server, body)
        eventually(lambda: server.engine.num_steps > 1)
        server.gate.close()
        data = read_all(running)
        assert b'"code":"engine_stopped"' in data and b"[DONE]" not in data
        assert server.engine.running == []


def test_counts_add_up_whatever_happened() -> None:
    with live_server() as server, server.client() as client:
        client.post(CHAT, json={**BODY, "n": 2, "max_tokens": 3})
        server.engine.max_running = 2
        assert client.post(CHAT, json={**BODY, "n": 3}).status_code == 503  # two were admitted and withdrawn
        server.engine.max_running = None
        server.engine.failure = RequestFailed("x")
        client.post(CHAT, json=BODY)
        server.engine.failure = None
        connection = connect(server, {**STREAM, "max_tokens": 400})
        connection.close()
        eventually(lambda: server.engine.stats().num_admitted >= 3 and server.engine.running == [])
        time.sleep(0.05)
        series = metrics_of(client)
        finished = sum(value for name, value in series.items() if name.startswith("headway_requests_finished_total"))
        assert series['headway_e2e_request_seconds_count{model="fake"}'] == finished
        running, waiting = (series[f'headway_requests_{state}{{model="fake"}}'] for state in ("running", "waiting"))
        assert series['headway_requests_admitted_total{model="fake"}'] == finished + running + waiting
        assert running == waiting == 0


def metrics_of(client: httpx.Client) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_token_counters_are_the_sum_of_usages() -> None:
    with live_server() as server, server.client() as client:
        usages = [client.post(CHAT, json={**BODY, "max_tokens": count}).json()["usage"] for count in (1, 2, 5)]
        series = metrics_of(client)
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        assert series['headway_prompt_tokens_total{model="fake"}'] == prompt
        assert series['headway_generated_tokens_total{model="fake"}'] == 8
        assert series['headway_time_to_first_token_seconds_count{model="fake"}'] == 3
        assert series['headway_inter_token_latency_seconds_count{model="fake"}'] == 5
        client.post(CHAT, json={**BODY, "n": 99})
        assert metrics_of(client)['headway_requests_refused_total{model="fake",reason="limit_exceeded"}'] == 1
