"""From an application to a listening process: the socket, uvicorn, and a graceful stop."""

import asyncio
import errno
import ipaddress
import math
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.config import ServerConfig
from headway.errors import ConfigError
from headway.server.gate import Gate

FLUSH_S = 2  # after the drain: how long connections may take to read what was written to them


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0: any free one). Comes before a model: a taken port shows early."""
    family, address = _resolve(config)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_bind(config, error) from error
    return listener


def _resolve(config: ServerConfig) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not 0 <= config.port < 1 << 16:
        raise ConfigError(f"server.port is {config.port}; it must be 0 (any free port) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _cannot_bind(config, error) from error
    host, port = str(address[0]), int(address[1])
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"server.host is {config.host}, which other machines can reach, and there are no API keys yet to protect "
            "it: serve on 127.0.0.1 (--host) and put an authenticating proxy or an SSH tunnel in front"
        )
    return family, (host, port)


def _cannot_bind(config: ServerConfig, error: Exception) -> ConfigError:
    where = f"port {config.port} on {config.host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"{where} is in use: stop the program that has it, or choose another with --port (setting server.port)"
        )
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return ConfigError(f"no permission for {where}: choose a port above 1023 with --port (setting server.port)")
    return ConfigError(f"cannot listen on {where}: {error} (settings server.host and server.port)")


def serve(app: FastAPI, listener: socket.socket, config: ServerConfig) -> None:
    """Serves until SIGTERM or SIGINT, then drains; returns when the last connection is done."""
    server_config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(config.keep_alive_s),
        timeout_graceful_shutdown=FLUSH_S,
    )
    DrainingServer(server_config, app.state.gate).run(sockets=[listener])


class Connection(H11Protocol):
    """Gives the application its transport, in ``scope["headway.transport"]``.

    The write buffer's mark is lifted because the application watches its size itself: a stream whose client does not
    read is cut at ``server.send_buffer_bytes`` instead of being held up with its sequences still running.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1 << 62)
        app = self.app

        async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope["headway.transport"] = transport
            await app(scope, receive, send)

        self.app = with_transport


class DrainingServer(uvicorn.Server):
    """On the first signal: refuse what is new, finish what runs, exit 0. On the second: cut what runs."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._gate.is_closed:
            self.should_exit = True
        self._gate.close()

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter) or self._gate.is_drained:
            self._gate.cancel_all()
            return True
        return False
