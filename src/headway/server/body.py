"""From the bytes of a request to a checked model of it; every way this can fail is a 4xx that says what to change."""

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Never, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from headway.config import LimitsConfig
from headway.errors import InvalidRequest
from headway.server.errors import ApiError
from headway.server.fields import settle_fields

MAX_BRACKETS = 1 << 18  # each may be an array; the parser lets no other thread run, 0.1 s for as many
MAX_DEPTH = 64  # of nested arrays and objects; the deepest request we know of, a tool schema, stays under 20
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

OFF_LOOP_SIZE = 4096  # bytes, characters or tokens: half a millisecond of work

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


async def read_model(request: Request, model: type[M], limits: LimitsConfig) -> M:
    _check_content_type(request)
    body = await _read_bounded(request, limits.max_body_bytes)
    return await off_loop(len(body), partial(parse_model, body, model, limits))


def parse_model(body: bytes, model: type[M], limits: LimitsConfig) -> M:
    fields = parse_object(body)
    _check_count(fields, "messages", limits.max_messages)
    try:
        return model.model_validate(settle_fields(fields, model))
    except ValidationError as error:
        raise _first_fault(error) from None


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """What ``work`` returns; done in a thread where its input is so large that it would hold up the streams."""
    return await asyncio.to_thread(work) if size > OFF_LOOP_SIZE else work()


def _check_content_type(request: Request) -> None:
    """A body without a content type is taken for JSON; one that claims to be something else is not."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        message = f"The body must be JSON: send the header Content-Type: application/json, not {content_type[:80]!r}."
        raise ApiError(415, message, code="unsupported_media_type")


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(announced, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large("more", max_bytes)
    return bytes(body)


def _too_large(size: str, max_bytes: int) -> ApiError:
    message = f"The body has {size} bytes; at most {max_bytes} are accepted (server.limits.max_body_bytes)."
    return ApiError(413, message, code="body_too_large")


def parse_object(body: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, finite numbers, whole characters, bounded nesting, an object at the top."""
    if (num_brackets := body.count(b"[") + body.count(b"{")) > MAX_BRACKETS:
        message = (
            f"The body opens {num_brackets} brackets, those in text included; at most {MAX_BRACKETS} are accepted."
        )
        raise InvalidRequest(message, code="invalid_json")
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise _bad_json(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as error:
        raise _bad_json(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError:  # an integer of thousands of digits
        raise _bad_json("a number has too many digits") from None
    if not isinstance(value, dict):
        raise _bad_json("the top level must be an object")
    _check_depth(value)
    if _SURROGATE_ESCAPE.search(body):
        _check_characters(value)
    return value


def _refuse_constant(name: str) -> Never:
    raise _bad_json(f"{name} is not a JSON number")


def _bad_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for children in below for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise _bad_json(f"it is nested deeper than {MAX_DEPTH} levels")


def _check_characters(value: dict[str, Any]) -> None:
    """Half of a UTF-16 pair (``"\\ud800"``) is legal JSON but no character, and no tokenizer can encode it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _bad_json("a \\u escape is half of a surrogate pair") from None


def _check_count(body: dict[str, Any], name: str, limit: int) -> None:
    value = body.get(name)
    if isinstance(value, list) and len(value) > limit:
        raise InvalidRequest(
            f"{name} has {len(value)} items; at most {limit} are accepted (server.limits.max_{name}).", param=name
        )


def _first_fault(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False, include_input=False)[0]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    reason = str(fault.get("ctx", {}).get("error", "")) or fault["msg"]
    if fault["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown field {param!r}: remove it.", param=param, code="unknown_parameter")
    if not param:
        return InvalidRequest(reason)
    return InvalidRequest(f"{param}: {reason}.", param=param)
