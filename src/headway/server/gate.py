"""What runs, and whether more may come in: the part of a graceful stop that the application sees."""

import asyncio
import math
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.server.errors import ApiError, unavailable
from headway.server.generation import Generation


class Visit:
    """One POST while it is being answered; ``generation`` is set once it has work in the engine."""

    def __init__(self) -> None:
        self.generation: Generation | None = None
        self.is_received = False  # the whole request is here
        self._task = asyncio.current_task()

    def cancel(self) -> None:
        """Stops its work, or the wait for a request that is only half here."""
        if self.generation is not None:
            self.generation.cancel()
        elif not self.is_received and self._task is not None:
            self._task.cancel()


class Gate:
    """Open until ``close``; from then on new work is refused and what runs may finish within ``drain_s``."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._deadline: float | None = None
        self._visits: list[Visit] = []

    @property
    def is_closed(self) -> bool:
        return self._deadline is not None

    @property
    def is_drained(self) -> bool:
        """Closed, and nothing runs any more or the time for it is over. Half a request is nothing that runs."""
        if self._deadline is None:
            return False
        return time.monotonic() >= self._deadline or not any(visit.is_received for visit in self._visits)

    def close(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._drain_s

    def enter(self) -> Visit:
        if self._deadline is not None:
            raise self.refusal()
        visit = Visit()
        self._visits.append(visit)
        return visit

    def refusal(self) -> ApiError:
        assert self._deadline is not None
        seconds = max(1, math.ceil(self._deadline - time.monotonic()))
        message = f"The server is shutting down and takes no new work: retry in {seconds} s (server.drain_s)."
        return unavailable(message, "shutting_down", seconds)

    def leave(self, visit: Visit) -> None:
        self._visits.remove(visit)

    def cancel_all(self) -> None:
        """Stops what runs; each of them ends with an error that says so."""
        for visit in self._visits:
            visit.cancel()


class GateMiddleware:
    """Lets every POST through the gate; the endpoint finds its visit in ``scope["headway.visit"]``."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            visit = self._gate.enter()
        except ApiError as error:
            return await error.response()(scope, receive, send)
        scope["headway.visit"] = visit

        async def receive_body() -> Message:
            message = await receive()
            visit.is_received |= message["type"] == "http.request" and not message.get("more_body", False)
            return message

        try:
            await self._app(scope, receive_body, send)
        except asyncio.CancelledError:
            if visit.is_received or not self._gate.is_closed:
                raise
            await self._gate.refusal().response()(scope, receive, send)
        finally:
            self._gate.leave(visit)
