"""Chat messages in the one shape that chat templates are given: text content, tool calls with parsed arguments."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import InvalidRequest

Message = Mapping[str, Any]


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of OpenAI chat messages as templates expect them; the originals are untouched.

    Content parts become one text, joined by newlines. A missing or null content stays null (the template sees it as
    absent). The arguments of tool calls become objects. Which roles may follow which is for the template to say.
    Raises InvalidRequest, naming the field, for what no template can take.
    """
    if not messages:
        raise InvalidRequest("messages is empty: send at least one message.", param="messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with a role and content.", param=where)
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where}.role must be a string.", param=f"{where}.role")
    given = {key: value for key, value in message.items() if value is not None}
    given["content"] = _text(message.get("content"), f"{where}.content")
    if "tool_calls" in given:
        given["tool_calls"] = _tool_calls(given["tool_calls"], f"{where}.tool_calls")
    return given


def _text(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts.", param=where)
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{where} must be an object with a type.", param=where)
    if part.get("type") != "text":
        message = f"{where}.type is {str(part.get('type'))[:40]!r}: this model reads text parts only."
        raise InvalidRequest(message, param=f"{where}.type")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text must be a string.", param=f"{where}.text")
    return part["text"]


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} must be a list.", param=where)
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function must be an object with a name.", param=f"{where}.function")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where} is not valid JSON: {error}.", param=where) from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where} must be a JSON object.", param=where)
    return arguments
