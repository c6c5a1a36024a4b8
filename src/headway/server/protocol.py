"""The requests as clients write them: names and types. ``intake`` and the engine judge values.

Every optional field may be null, which means absent. Types are strict: ``"5"`` is not a number, ``true`` is not 1.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator


class Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body


def join_text_parts(content: Any) -> Any:
    """Message content as one string: text parts are joined by a line break, other kinds of part are refused."""
    if not isinstance(content, list):
        if content is None or isinstance(content, str):
            return content
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"only text parts are supported, not {str(kind)[:40]!r}")
        if not isinstance(text, str) or len(part) > 2:
            raise ValueError("a text part has the fields type and text, both strings, and no others")
        texts.append(text)
    return "\n".join(texts)


_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA}, {"type": "null"}]}
Content = Annotated[str | None, BeforeValidator(join_text_parts), WithJsonSchema(_CONTENT_SCHEMA)]


class FunctionCall(Model):
    name: str
    arguments: str


class ToolCall(Model):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Model):
    """``developer`` is another word for ``system``. An empty list is absent: clients send whole replies back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_list_is_absent(cls, message: Any) -> Any:
        return {name: value for name, value in message.items() if value != []} if isinstance(message, dict) else message

    @model_validator(mode="after")
    def _has_content(self) -> "ChatMessage":
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content, unless it is the assistant's and has tool_calls")
        return self

    @property
    def num_chars(self) -> int:
        """Of all the text in it that a template may write."""
        texts = [self.content, self.name, self.tool_call_id]
        for call in self.tool_calls or ():
            texts += [call.id, call.function.name, call.function.arguments]
        return sum(len(text) for text in texts if text is not None)

    def as_template_input(self) -> dict[str, Any]:
        message = self.model_dump(exclude_none=True)
        return message | {"role": "system"} if self.role == "developer" else message


class StreamOptions(Model):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SamplingFields(Model):
    """What chat and text completions share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int = 1
    seed: int | None = None
    stop: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
    ] = None
    stop_token_ids: list[int] = Field(default_factory=list, fail_fast=True)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    deadline_ms: float | None = None
    # Labels: accepted, and without effect on the answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None


class ChatRequest(SamplingFields):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


_IDS = {"type": "array", "items": {"type": "integer"}}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _IDS,
        {"type": "array", "items": _IDS},
    ]
}


class CompletionRequest(SamplingFields):
    """``prompt`` is a string, a list of strings, a list of token ids, or a list of lists of them (see ``intake``)."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
    logprobs: int | None = None
    echo: bool = False


class TokenizeRequest(Model):
    """A ``prompt``, or ``messages`` to go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class DetokenizeRequest(Model):
    model: str | None = None
    tokens: list[int] = Field(fail_fast=True)
    skip_special_tokens: bool = False
