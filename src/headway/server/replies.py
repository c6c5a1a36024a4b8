"""Answers in OpenAI's shapes: whole bodies, and the chunks of a stream. Both are fed the same deltas.

A chunk is a constant head, one small JSON value and a constant tail, so that a streamed token costs one ``dumps``.
"""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.request import FinishReason
from headway.engine.generation import OutputDelta, TokenText, Usage


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every body and chunk of one answer carries."""

    id: str
    created: int  # Unix seconds
    model: str
    system_fingerprint: str


class Reply(Protocol):
    """The answer to one request, built delta by delta. Sequence ``p * n + i`` is choice i of prompt p."""

    def chunk(self, index: int, delta: OutputDelta) -> str:
        """The events for this delta; empty when there is nothing to tell yet."""
        ...

    def usage_chunk(self, usage: dict[str, Any]) -> str: ...

    def add(self, index: int, delta: OutputDelta) -> None: ...

    def body(self, usage: dict[str, Any]) -> bytes: ...


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def usage_body(usages: Sequence[Usage], n: int) -> dict[str, Any]:
    """Token counts of a request. A prompt counts once, however many choices it has; so do its cached tokens."""
    prompts = usages[::n]
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)},
    }


class Chunks:
    """The constant parts of one stream's events."""

    def __init__(self, kind: str, head: ReplyHead, include_usage: bool) -> None:
        fields = {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.system_fingerprint,
        }
        self._start = "data: " + dumps(fields)[:-1] + ',"choices":['
        self._end = ',"usage":null}\n\n' if include_usage else "}\n\n"

    def choice(self, choice_json: str) -> str:
        return f"{self._start}{choice_json}]{self._end}"

    def usage(self, usage: dict[str, Any]) -> str:
        return f'{self._start}],"usage":{dumps(usage)}}}\n\n'


class CompletionReply:
    """``echo`` holds one text for each prompt, put before each of its ``n`` answers; empty for none."""

    def __init__(self, head: ReplyHead, num_choices: int, include_usage: bool, n: int, echo: Sequence[str]) -> None:
        self._head = head
        self._chunks = Chunks("text_completion", head, include_usage)
        self._echo = [echo[index // n] if echo else "" for index in range(num_choices)]
        self._texts: list[list[str]] = [[text] for text in self._echo]
        self._logprobs = [_CompletionLogprobs() for _ in range(num_choices)]
        self._reasons: list[str | None] = [None] * num_choices

    def chunk(self, index: int, delta: OutputDelta) -> str:
        text = self._echo[index] + delta.text
        if not (text or delta.tokens or delta.finish_reason):
            return ""
        self._echo[index] = ""
        logprobs = dumps(self._logprobs[index].take(delta.tokens)) if delta.tokens else "null"
        reason = dumps(_reason(delta.finish_reason))
        choice = f'{{"index":{index},"text":{dumps(text)},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return self._chunks.choice(choice)

    def usage_chunk(self, usage: dict[str, Any]) -> str:
        return self._chunks.usage(usage)

    def add(self, index: int, delta: OutputDelta) -> None:
        self._texts[index].append(delta.text)
        self._logprobs[index].add(delta.tokens)
        self._reasons[index] = _reason(delta.finish_reason)

    def body(self, usage: dict[str, Any]) -> bytes:
        choices = [
            {
                "index": index,
                "text": "".join(texts),
                "logprobs": self._logprobs[index].whole(),
                "finish_reason": self._reasons[index],
            }
            for index, texts in enumerate(self._texts)
        ]
        return whole_body("text_completion", self._head, choices, usage)


class _CompletionLogprobs:
    """Parallel lists, one entry a token; ``text_offset`` counts characters of the answer before the token."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._kept: list[TokenText] = []
        self._offsets: list[int] = []

    def add(self, tokens: Sequence[TokenText]) -> None:
        for token in tokens:
            self._kept.append(token)
            self._offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.bytes))

    def take(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        """The lists for these tokens alone."""
        self.add(tokens)
        block = self.whole()
        self._kept, self._offsets = [], []
        return block

    def whole(self) -> dict[str, Any] | None:
        if not self._kept:
            return None
        return {
            "tokens": [token.text for token in self._kept],
            "token_logprobs": [token.logprob for token in self._kept],
            "top_logprobs": [_alternatives(token) for token in self._kept],
            "text_offset": self._offsets,
        }


def _alternatives(token: TokenText) -> dict[str, float]:
    """The chosen token is always among them. Of tokens that read the same, the most likely stands."""
    alternatives: dict[str, float] = {}
    for other in (*token.top, token):
        alternatives.setdefault(other.text, other.logprob)
    return alternatives


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value


def whole_body(kind: str, head: ReplyHead, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
    body = {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.system_fingerprint,
        "choices": choices,
        "usage": usage,
    }
    return dumps(body).encode()
