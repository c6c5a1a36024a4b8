"""The whole server over a fake engine, on a real socket, in a thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from fake_engine import FakeEngine
from headway.config import ServerConfig
from headway.server.app import create_app
from headway.server.gate import Gate
from headway.server.serve import bind, serve


@dataclass
class LiveServer:
    engine: FakeEngine
    gate: Gate
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=10)


@contextmanager
def live_server(config: ServerConfig | None = None, engine: FakeEngine | None = None) -> Iterator[LiveServer]:
    config = config or ServerConfig(port=0)
    engine = engine or FakeEngine()
    listener = bind(config)
    listener.listen()  # from here on connections wait for the server instead of being refused
    app = create_app(engine, config)
    thread = threading.Thread(target=serve, args=(app, listener, config))
    thread.start()
    try:
        yield LiveServer(engine, app.state.gate, listener.getsockname()[1])
    finally:
        app.state.gate.close()
        thread.join(timeout=20)
        assert not thread.is_alive()


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Waits for ``condition``; fails only long after it should have come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.01)
