"""Every refusal and failure in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``.

What a client is told holds no addresses, paths or prompts. The official clients retry 408, 409, 429 and every 5xx
unless told otherwise, so a final answer carries ``x-should-retry: false``, a temporary one a computed ``Retry-After``.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from headway.core.admission import Refusal, RefusalReason
from headway.errors import EngineStopped, HeadwayError, RequestError, RequestFailed, RequestRefused

FINAL = {"x-should-retry": "false"}


class ClientGone(HeadwayError):
    """The client closed its connection; nobody is left to answer."""


class ApiError(HeadwayError):
    """An error ready to be written: status, body and headers."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] = FINAL,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers)
        self.error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
        if numbers:
            self.error["numbers"] = dict(numbers)

    def body(self) -> bytes:
        return json.dumps({"error": self.error}, ensure_ascii=False, separators=(",", ":")).encode()

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def unavailable(message: str, code: str, retry_after_s: float, numbers: Mapping[str, Any] | None = None) -> ApiError:
    headers = _retry_after(retry_after_s)
    return ApiError(503, message, code=code, kind="service_unavailable", headers=headers, numbers=numbers)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def as_api_error(error: BaseException) -> ApiError:
    """The reply for any exception. What is not ours to explain becomes a plain 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, error.message, code=error.code, param=error.param)
    if isinstance(error, RequestRefused):
        return _refusal(error.refusal)
    if isinstance(error, EngineStopped):
        return unavailable("The engine has stopped; the request was not finished.", "engine_stopped", 5)
    if isinstance(error, RequestFailed):
        message = "The engine failed on this request; others are not affected. The server's log has the cause."
        return ApiError(500, message, code="request_failed", kind="server_error")
    message = "Internal error. The server's log has the cause."
    return ApiError(500, message, code="internal_error", kind="server_error", headers={})


def _refusal(refusal: Refusal) -> ApiError:
    numbers = {name: value for name, value in asdict(refusal).items() if name not in ("reason", "message")}
    if refusal.reason is RefusalReason.OVER_QUOTA:
        headers = _retry_after(refusal.retry_after_s or 1.0)
        return ApiError(
            429, refusal.message, code="over_quota", kind="rate_limit_error", headers=headers, numbers=numbers
        )
    if refusal.is_retryable:
        return unavailable(refusal.message, refusal.reason.value, refusal.retry_after_s or 1.0, numbers)
    code = "context_length_exceeded" if refusal.reason is RefusalReason.TOO_LONG else refusal.reason.value
    return ApiError(400, refusal.message, code=code, numbers=numbers)


_HTTP_HINTS = {
    404: "There is nothing at this path. Known: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, "
    "/detokenize, /health, /ready, /metrics.",
    405: "This path does not take that method; the Allow header names the ones it takes.",
}


def _from_http_exception(error: HTTPException) -> ApiError:
    message = _HTTP_HINTS.get(error.status_code, error.detail)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return ApiError(error.status_code, message, code=code, headers={**FINAL, **(error.headers or {})})


def install(app: FastAPI, refused: Callable[[str], None]) -> None:
    """Every exception of an endpoint becomes an error reply; ``refused`` is told its code."""

    def reply(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect | ClientGone):
            return Response(status_code=499)  # nobody reads it
        api_error = _from_http_exception(error) if isinstance(error, HTTPException) else as_api_error(error)
        refused(api_error.error["code"])
        return api_error.response()

    for kind in (HTTPException, ClientDisconnect, HeadwayError, Exception):
        app.add_exception_handler(kind, reply)
