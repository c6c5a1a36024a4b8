"""What the server asks of an engine, and no more, so that a fake one is trivial. ``AsyncEngine`` has this shape."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from headway.engine.generation import GenerationRequest, ModelCard, OutputDelta
from headway.observe.stats import EngineStats


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class ChatTemplate(Protocol):
    """May wait for a renderer in another process, so it is called in a thread."""

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]: ...


class Stream(Protocol):
    """One sequence's deltas. Raises RequestFailed or EngineStopped where the answer ends without a finish reason."""

    def __aiter__(self) -> AsyncIterator[OutputDelta]: ...

    def cancel(self) -> None:
        """Drops the sequence; without effect once it has ended. May be called from the event loop only."""
        ...


class ServedEngine(Protocol):
    card: ModelCard
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation_defaults: Mapping[str, Any]

    async def submit(self, request: GenerationRequest) -> Stream:
        """Raises RequestError, RequestRefused or EngineStopped before anything was computed."""
        ...

    def stats(self) -> EngineStats: ...
