"""From chat messages to prompt token ids through the model's own template."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.engine.messages import Message, template_messages
from headway.engine.template_process import TemplateLimits, TemplateProcess
from headway.engine.tokenizer import Tokenizer
from headway.errors import InvalidRequest, TemplateError

ALLOWED_ARGUMENTS = frozenset(
    {"enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "documents", "date_string"}
)
MAX_NESTING = 128  # of objects and lists in messages, tools and arguments


class ChatTemplate:
    """A model's chat template and the tokenizer that reads its output.

    ``source`` None is a model without a template: every use raises TemplateError, since a made-up format would make
    it answer nonsense. A call may wait for the template up to ``limits.time_s``: from an event loop, call it in a
    thread. Thread-safe.

    Every method takes OpenAI chat messages. ``tools`` and the template ``arguments`` (``ALLOWED_ARGUMENTS``) are
    refused with InvalidRequest where the template has no use for them; TemplateError carries what the template
    objects to.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer, *, limits: TemplateLimits | None = None) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._process = None if source is None else TemplateProcess(source, limits or TemplateLimits())

    def warm_up(self) -> None:
        """Starts the template's process, so that the first request need not wait for it. Raises as ``render`` does."""
        self._template()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> str:
        """The prompt as text. With ``continue_final_message`` it ends where the last message's content ends, trailing
        spaces included, and ``add_generation_prompt`` has no effect.
        """
        variables = self._variables(messages, tools, add_generation_prompt, arguments)
        return self._render(variables, self._marks(variables), continue_final_message)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        *,
        allow_special: bool = False,
        **arguments: Any,
    ) -> list[int]:
        """The prompt as token ids, with exactly one BOS where the model wants one.

        The template's control tokens become control tokens; the same text in messages, tools or arguments stays text,
        unless ``allow_special``.
        """
        variables = self._variables(messages, tools, add_generation_prompt, arguments)
        marks = self._marks(variables)
        if not allow_special:
            variables = self._guard.shield(variables, marks.shield)
        text = self._render(variables, marks, continue_final_message)
        pieces = self._tokenizer.split_special(text)
        plain = (piece.replace(marks.shield, "") if isinstance(piece, str) else piece for piece in pieces)
        return self._tokenizer.add_prefix(self._tokenizer.encode_pieces(plain))

    @cached_property
    def _guard(self) -> "_ControlTextGuard":
        return _ControlTextGuard(self._tokenizer)

    def _template(self) -> TemplateProcess:
        if self._process is None:
            message = "this model has no chat template, as base models have none: use /v1/completions."
            raise TemplateError(message, param="messages", code="no_chat_template")
        self._process.variables()
        return self._process

    def _variables(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        add_generation_prompt: bool,
        arguments: dict[str, Any],
    ) -> dict[str, Any]:
        used = self._template().variables()
        if tools and "tools" not in used:
            raise InvalidRequest("this model's chat template has no place for tools.", param="tools")
        for name in arguments:
            if name not in ALLOWED_ARGUMENTS or name not in used:
                message = f"this model's chat template takes no argument {name[:40]!r}."
                raise InvalidRequest(message, param=f"chat_template_kwargs.{name[:40]}")
        return {
            "messages": template_messages(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **arguments,
        }

    def _marks(self, variables: dict[str, Any]) -> "_Marks":
        return _Marks(_characters(variables) | set(self._source or ""))

    def _render(self, variables: dict[str, Any], marks: "_Marks", continue_final_message: bool) -> str:
        names = self._tokenizer.special_names
        process = self._template()
        if not continue_final_message:
            return process.render(names | variables)
        *before, last = variables["messages"]
        if not isinstance(last["content"], str):
            message = "continue_final_message needs text in the last message."
            raise InvalidRequest(message, param="continue_final_message")
        opened = [*before, last | {"content": last["content"] + marks.end}]
        text = process.render(names | variables | {"messages": opened, "add_generation_prompt": False})
        if text.count(marks.end) != 1:
            message = "this model's chat template does not keep the last message's text, so it cannot be continued."
            raise TemplateError(message, param="continue_final_message")
        return text[: text.index(marks.end)]


class _Marks:
    """Two private-use characters that occur neither in the request nor in the template."""

    def __init__(self, taken: set[str]) -> None:
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in taken)
        try:
            self.shield, self.end = next(free), next(free)
        except StopIteration:
            message = "the messages use all of Unicode's private characters; leave one out."
            raise InvalidRequest(message, param="messages") from None


class _ControlTextGuard:
    """Keeps the text of control tokens in user input from being read as control tokens in the rendered prompt.

    A mark is put after each character of such a text, and beside text that begins or ends with a part of one (what the
    template writes there could complete it). Rendered text is cut at control tokens first and loses the marks after, so
    that they change no token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = tokenizer.special_texts
        self._cut = tokenizer.cut_special
        self._heads = {text[:length] for text in texts for length in range(1, len(text))}
        self._tails = {text[length:] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def shield(self, value: Any, mark: str) -> Any:
        """A copy of JSON-like ``value`` with every string in it, keys included, marked where needed."""
        if isinstance(value, str):
            return self._shield_text(value, mark)
        if isinstance(value, dict):
            return {self.shield(key, mark): self.shield(item, mark) for key, item in value.items()}
        if isinstance(value, list):
            return [self.shield(item, mark) for item in value]
        return value

    def _shield_text(self, text: str, mark: str) -> str:
        lengths = range(1, min(self._longest, len(text) + 1))
        before = mark if any(text[:length] in self._tails for length in lengths) else ""
        after = mark if any(text[-length:] in self._heads for length in lengths) else ""
        return before + mark.join(self._cut(text)) + after


def _characters(value: Any) -> set[str]:
    """Every character in the strings of JSON-like ``value``; raises InvalidRequest where it is nested too deeply."""
    found: set[str] = set()
    level = [value]
    for _ in range(MAX_NESTING):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                found.update(item)
            elif isinstance(item, dict):
                inner += [*item, *item.values()]
            elif isinstance(item, list):
                inner += item
        if not inner:
            return found
        level = inner
    raise InvalidRequest(f"messages and tools may be nested {MAX_NESTING} deep at most.", param="messages")
