"""Against DNS rebinding: a page on the web can make a browser send requests to loopback, but not under our name."""

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.errors import ApiError

_HOST = re.compile(r"(https?://)?(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:[0-9]+)?")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class HostGuard:
    """Answers only requests whose Host, and Origin where there is one, is a loopback name or the configured host."""

    def __init__(self, app: ASGIApp, configured_host: str) -> None:
        self._app = app
        self._allowed = {*LOOPBACK_NAMES, configured_host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        for name, value in (("Host", headers.get("host")), ("Origin", headers.get("origin"))):
            if value is not None and _hostname(value) not in self._allowed:
                return await _refusal(name)(scope, receive, send)
        await self._app(scope, receive, send)


def _hostname(value: str) -> str | None:
    """The name in ``name``, ``name:port``, ``[address]:port`` or an origin; None for what is none of these."""
    found = _HOST.fullmatch(value)
    return found and (found["address"] or found["name"]).lower()


def _refusal(name: str) -> ASGIApp:
    message = (
        f"The {name} header names another host than this server's: call it as localhost, or set server.host to the "
        "name clients use."
    )
    return ApiError(403, message, code="host_not_allowed", kind="permission_error").response()
