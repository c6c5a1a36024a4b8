"""Thinking and tool calls in the replies to chats; content alone is tested in test_replies."""

import json
from typing import Any

import pytest

from headway.core.request import FinishReason
from headway.engine.generation import OutputDelta, ToolCallDelta, Usage
from headway.server.chat_reply import ChatReply
from headway.server.replies import ReplyHead

HEAD = ReplyHead("id-1", 123, "m", "hw-1")
USAGE = Usage(5, 4)


def delta(text: str = "", reasoning: str = "", calls: Any = (), reason: FinishReason | None = None) -> OutputDelta:
    return OutputDelta(text, (1,), (), USAGE, reason, reasoning=reasoning, tool_calls=tuple(calls))


CALLS = [
    delta(reasoning="hm"),
    delta(reasoning="m."),
    delta("I look."),
    delta(calls=[ToolCallDelta(0, "", "call_1", "look")]),
    delta(calls=[ToolCallDelta(0, '{"a"'), ToolCallDelta(0, ":1}"), ToolCallDelta(1, "{}", "call_2", "end")]),
    delta(reason=FinishReason.STOP),
]


def streamed(deltas: list[OutputDelta], **options: bool) -> list[dict[str, Any]]:
    reply = ChatReply(HEAD, 1, False, **options)
    lines = "".join(reply.chunk(0, one) for one in deltas).split("\n\n")[:-1]
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


def whole(deltas: list[OutputDelta], **options: bool) -> dict[str, Any]:
    reply = ChatReply(HEAD, 1, False, **options)
    for one in deltas:
        reply.add(0, one)
    (choice,) = json.loads(reply.body({}))["choices"]
    return choice


def test_a_whole_message_with_thinking_and_calls() -> None:
    choice = whole(CALLS, is_plain=False)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look.",
        "refusal": None,
        "reasoning_content": "hmm.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "end", "arguments": "{}"}},
        ],
    }


def test_a_stream_has_openais_pieces() -> None:
    choices = streamed(CALLS, is_plain=False)
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"reasoning_content": "m."},
        {"content": "I look."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": '{"a"'}},
                {"index": 0, "function": {"arguments": ":1}"}},
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "end", "arguments": "{}"}},
            ]
        },
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["tool_calls"]


def test_calls_without_text_have_null_content() -> None:
    deltas = [delta(calls=[ToolCallDelta(0, "{}", "call_1", "f")]), delta(reason=FinishReason.STOP)]
    assert whole(deltas, is_plain=False)["message"]["content"] is None
    assert all(choice["delta"].get("content") is None for choice in streamed(deltas, is_plain=False))


def test_thinking_without_text_has_empty_content() -> None:
    deltas = [delta(reasoning="hm"), delta(reason=FinishReason.LENGTH)]
    assert whole(deltas, is_plain=False)["message"]["content"] == ""
    assert [choice["delta"] for choice in streamed(deltas, is_plain=False)][-2:] == [{"content": ""}, {}]


@pytest.mark.parametrize(
    ("reason", "is_forced", "expected"),
    [
        (FinishReason.STOP, True, "stop"),
        (FinishReason.LENGTH, False, "length"),
        (FinishReason.STOP, False, "tool_calls"),
    ],
)
def test_how_an_answer_with_calls_finishes(reason: FinishReason, is_forced: bool, expected: str) -> None:
    deltas = [delta(calls=[ToolCallDelta(0, "{}", "call_1", "f")]), delta(reason=reason)]
    assert whole(deltas, is_plain=False, is_forced=is_forced)["finish_reason"] == expected
    assert streamed(deltas, is_plain=False, is_forced=is_forced)[-1]["finish_reason"] == expected
