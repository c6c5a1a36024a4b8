from typing import Any

import pytest
from pydantic import ValidationError

from headway.server.protocol import ChatMessage, ChatRequest


def message(**fields: Any) -> dict[str, Any]:
    return ChatMessage.model_validate(fields).as_template_input()


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message(role="user", content=parts) == {"role": "user", "content": "a\nb"}


def test_developer_is_system() -> None:
    assert message(role="developer", content="x")["role"] == "system"


def test_a_reply_can_be_sent_back_as_it_came() -> None:
    sent = message(
        role="assistant", content="x", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None
    )
    assert sent == {"role": "assistant", "content": "x"}


def test_null_content_is_absent_when_there_are_tool_calls() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert message(role="assistant", content=None, tool_calls=calls) == {"role": "assistant", "tool_calls": calls}


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"type": "text", "text": "x"}},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
        {"role": "wizard", "content": "x"},
        {"content": "x"},
        {"role": "user", "content": "x", "colour": "red"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_bad_messages_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChatMessage.model_validate(fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", [1]),
        ("n", 1.5),
        ("n", True),
        ("max_tokens", "10"),
        ("stream", "yes"),
        ("seed", 1.5),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", 1),
        ("stream_options", True),
        ("stream_options", {"include_usage": 1}),
        ("metadata", {"a": 1}),
        ("service_tier", "flex"),
        ("logprobs", 5),
        ("messages", "hi"),
        ("messages", [5]),
    ],
)
def test_types_are_strict(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": [], name: value})
    assert caught.value.errors()[0]["loc"][0] == name


def test_null_is_absent_for_every_optional_field() -> None:
    nulls = {name: None for name in ChatRequest.model_fields if name != "messages"}
    assert ChatRequest.model_validate({"messages": [], **nulls}) == ChatRequest(messages=[])
