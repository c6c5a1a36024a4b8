"""The answer to a chat in OpenAI's shapes: content, thinking and tool calls, whole and streamed."""

from collections.abc import Sequence
from typing import Any

from headway.core.request import FinishReason
from headway.engine.generation import OutputDelta, TokenText, ToolCallDelta
from headway.server.replies import Chunks, ReplyHead, dumps, whole_body


class ChatReply:
    """``is_plain`` says that no answer can hold thinking or tool calls; ``is_forced`` that the client named the
    function to be called, where OpenAI's finish reason is ``stop`` in place of ``tool_calls``.
    """

    def __init__(
        self,
        head: ReplyHead,
        num_choices: int,
        include_usage: bool,
        is_plain: bool = True,
        is_forced: bool = False,
    ) -> None:
        self._head = head
        self._chunks = Chunks("chat.completion.chunk", head, include_usage)
        self._role = dumps({"role": "assistant", "content": "" if is_plain else None})
        self._choices = [_Choice(is_plain, is_forced) for _ in range(num_choices)]

    def chunk(self, index: int, delta: OutputDelta) -> str:
        choice = self._choices[index]
        events = ""
        if not choice.has_role:
            choice.has_role = True
            events = self._event(index, self._role)
        logprobs = dumps(_logprobs(delta.tokens)) if delta.tokens else "null"
        for piece in choice.pieces(delta):
            events += self._event(index, piece, logprobs)
            logprobs = "null"
        if delta.finish_reason is not None:
            events += self._event(index, "{}", "null", dumps(choice.reason(delta.finish_reason)))
        return events

    def _event(self, index: int, delta: str, logprobs: str = "null", reason: str = "null") -> str:
        choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return self._chunks.choice(choice)

    def usage_chunk(self, usage: dict[str, Any]) -> str:
        return self._chunks.usage(usage)

    def add(self, index: int, delta: OutputDelta) -> None:
        self._choices[index].add(delta)

    def body(self, usage: dict[str, Any]) -> bytes:
        choices = [{"index": index, **choice.body()} for index, choice in enumerate(self._choices)]
        return whole_body("chat.completion", self._head, choices, usage)


class _Choice:
    """One answer, told in pieces or kept until it is whole; a stream keeps no text."""

    def __init__(self, is_plain: bool, is_forced: bool) -> None:
        self.has_role = False
        self._lacks_content = not is_plain  # of the answer so far, as the client has it: null, not ""
        self._is_forced = is_forced
        self._has_calls = False
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._tokens: list[TokenText] = []
        self._reason: str | None = None

    def pieces(self, delta: OutputDelta) -> list[str]:
        """The ``delta`` objects that this delta becomes, one for each kind of thing in it."""
        self._has_calls = self._has_calls or bool(delta.tool_calls)
        pieces = []
        if delta.reasoning:
            pieces.append(f'{{"reasoning_content":{dumps(delta.reasoning)}}}')
        is_empty = delta.finish_reason is not None and self._lacks_content and not self._has_calls
        if delta.text or is_empty or (delta.tokens and not pieces and not delta.tool_calls):
            pieces.append(f'{{"content":{dumps(delta.text)}}}')
            self._lacks_content = False
        if delta.tool_calls:
            pieces.append(dumps({"tool_calls": [_call_piece(call) for call in delta.tool_calls]}))
        return pieces

    def add(self, delta: OutputDelta) -> None:
        self._texts.append(delta.text)
        self._reasoning.append(delta.reasoning)
        self._tokens.extend(delta.tokens)
        for piece in delta.tool_calls:
            if piece.id:
                self._calls.append(_call(piece.id, piece.name))
            self._calls[piece.index]["function"]["arguments"].append(piece.arguments)
        self._has_calls = bool(self._calls)
        self._reason = None if delta.finish_reason is None else self.reason(delta.finish_reason)

    def reason(self, reason: FinishReason) -> str:
        if reason is FinishReason.STOP and self._has_calls and not self._is_forced:
            return "tool_calls"
        return reason.value

    def body(self) -> dict[str, Any]:
        content = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [_joined(call) for call in self._calls]
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        logprobs = _logprobs(self._tokens) if self._tokens else None
        return {"message": message, "logprobs": logprobs, "finish_reason": self._reason}


def _call(call_id: str, name: str) -> dict[str, Any]:
    """A tool call whose arguments are still pieces."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": []}}


def _joined(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": "".join(function["arguments"])}}


def _call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """The first piece of a call names it; clients join the arguments of those that follow by ``index``."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    content = [_token(token) | {"top_logprobs": [_token(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}
