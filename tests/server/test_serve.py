import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headway.config import ServerConfig
from headway.errors import ConfigError
from headway.server.serve import bind

SRC = Path(__file__).parents[2] / "src"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def test_a_taken_port_says_what_to_do() -> None:
    with bind(ServerConfig(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is in use.*--port.*server\.port"):
            bind(ServerConfig(port=port))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_others_can_reach_is_refused_without_keys(host: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.host"):
        bind(ServerConfig(host=host, port=0))


@pytest.mark.parametrize("port", [-1, 70_000])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=r"server\.port"):
        bind(ServerConfig(port=port))


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.host"):
        bind(ServerConfig(host="no such host", port=0))


def test_loopback_by_name() -> None:
    with bind(ServerConfig(host="localhost", port=0)) as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("serve_fake.py")
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.kill()


def wait_until_ready(port: int) -> None:
    for _ in range(200):
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ready").raise_for_status().close()
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not come up")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_exits_with_success(process: subprocess.Popen[str], sig: int) -> None:
    port = int(process.stdout.readline())
    wait_until_ready(port)
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(sig)
        text = "".join(lines)
    assert text.endswith("data: [DONE]")
    assert process.wait(timeout=10) == 0
    assert process.stderr.read() == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_second_signal_cuts_what_runs(process: subprocess.Popen[str]) -> None:
    port = int(process.stdout.readline())
    wait_until_ready(port)
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        received = [""]
        with pytest.raises(httpx.RemoteProtocolError):
            received.extend(line for line in lines if line)
    assert "[DONE]" not in received[-1] and "engine_stopped" in received[-1]
    assert process.wait(timeout=10) == 0
