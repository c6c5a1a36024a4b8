import json
from typing import Any

import pytest

from headway.core.request import FinishReason
from headway.engine.generation import OutputDelta, TokenText, Usage
from headway.server.chat_reply import ChatReply
from headway.server.replies import CompletionReply, ReplyHead, usage_body

HEAD = ReplyHead("id-1", 123, 'model "x"', "hw-1")
LLAMA = "🦙".encode()


def token(data: bytes, logprob: float = -0.25, top: tuple[TokenText, ...] = ()) -> TokenText:
    return TokenText(1, data.decode(errors="replace"), data, logprob, top)


def deltas() -> list[OutputDelta]:
    """An answer with a character split over tokens, quotes, a line break, and a last delta without text."""
    usage = Usage(5, 4)
    return [
        OutputDelta('say "', (1,), (token(b'say "', top=(token(b'say "'), token(b"no", -9999.0))),), usage),
        OutputDelta("", (2,), (token(LLAMA[:2]),), usage),
        OutputDelta("🦙\n", (3,), (token(LLAMA[2:]), token(b"\n")), usage),
        OutputDelta("", (), (), usage, FinishReason.LENGTH),
    ]


def without_logprobs(delta: OutputDelta) -> OutputDelta:
    return OutputDelta(delta.text, delta.token_ids, (), delta.usage, delta.finish_reason)


def parse(events: str) -> list[dict[str, Any]]:
    lines = events.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def replies(kind: str, include_usage: bool = False) -> tuple[Any, Any]:
    if kind == "chat":
        return ChatReply(HEAD, 1, include_usage), ChatReply(HEAD, 1, include_usage)
    return tuple(CompletionReply(HEAD, 1, include_usage, 1, ["pre "]) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("logprobs", [True, False])
def test_the_stream_says_what_the_whole_body_says(kind: str, logprobs: bool) -> None:
    streamed, whole = replies(kind)
    given = deltas() if logprobs else [without_logprobs(delta) for delta in deltas()]
    chunks = parse("".join(streamed.chunk(0, delta) for delta in given))
    for delta in given:
        whole.add(0, delta)
    (choice,) = json.loads(whole.body({}))["choices"]
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]
    assert pieces[-1]["finish_reason"] == "length"
    found = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    if kind == "chat":
        assert "".join(piece["delta"].get("content", "") for piece in pieces) == choice["message"]["content"]
        assert [entry for part in found for entry in part["content"]] == (
            (choice["logprobs"] or {}).get("content") or []
        )
    else:
        assert "".join(piece["text"] for piece in pieces) == choice["text"] == 'pre say "🦙\n'
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [entry for part in found for entry in part[name]] == (choice["logprobs"][name] if logprobs else [])


def test_the_role_comes_once_and_first() -> None:
    reply = ChatReply(HEAD, 2, include_usage=False)
    for index in (0, 1):
        chunks = parse("".join(reply.chunk(index, delta) for delta in deltas()))
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
        assert {chunk["choices"][0]["index"] for chunk in chunks} == {index}


def test_every_chunk_carries_the_head_and_null_usage_only_when_usage_will_come() -> None:
    for include_usage in (True, False):
        reply = ChatReply(HEAD, 1, include_usage)
        for chunk in parse("".join(reply.chunk(0, delta) for delta in deltas())):
            assert chunk["id"] == "id-1" and chunk["model"] == 'model "x"' and chunk["system_fingerprint"] == "hw-1"
            assert chunk["object"] == "chat.completion.chunk" and chunk["created"] == 123
            assert ("usage" in chunk) is include_usage


def test_usage_comes_alone() -> None:
    (chunk,) = parse(ChatReply(HEAD, 1, True).usage_chunk({"total_tokens": 3}))
    assert (chunk["choices"], chunk["usage"]) == ([], {"total_tokens": 3})


def test_bytes_of_logprobs_join_to_the_text() -> None:
    reply = ChatReply(HEAD, 1, False)
    for delta in deltas():
        reply.add(0, delta)
    (choice,) = json.loads(reply.body({}))["choices"]
    data = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert data.decode() == choice["message"]["content"]


def test_text_offsets_count_whole_characters() -> None:
    _, reply = replies("completion")
    for delta in deltas():
        reply.add(0, delta)
    logprobs = json.loads(reply.body({}))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 5, 5, 6]
    assert logprobs["top_logprobs"][0] == {'say "': -0.25, "no": -9999.0}


def test_held_back_text_makes_no_chunk_but_the_role() -> None:
    held = OutputDelta("", (1,), (), Usage(1, 1))
    chat, completion = ChatReply(HEAD, 1, False), CompletionReply(HEAD, 1, False, 1, [])
    assert len(parse(chat.chunk(0, held))) == 1
    assert chat.chunk(0, held) == completion.chunk(0, held) == ""


def test_infinite_numbers_never_become_json() -> None:
    delta = OutputDelta("a", (1,), (token(b"a", float("-inf")),), Usage(1, 1))
    with pytest.raises(ValueError, match="JSON"):
        ChatReply(HEAD, 1, False).chunk(0, delta)


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    usages = [Usage(10, 3, 8), Usage(10, 4, 10), Usage(20, 5, 0), Usage(20, 6, 16)]
    assert usage_body(usages, n=2) == {
        "prompt_tokens": 30,
        "completion_tokens": 18,
        "total_tokens": 48,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
