"""What the server asks of an engine, and no more, so that a fake one is trivial. ``AsyncEngine`` has this shape."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from headway.engine.generation import GenerationRequest, ModelCard, OutputDelta
from headway.engine.parts import ChatTemplate
from headway.observe.stats import EngineStats


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class Stream(Protocol):
    """One sequence's deltas. Raises RequestFailed or EngineStopped where the answer ends without a finish reason."""

    def __aiter__(self) -> AsyncIterator[OutputDelta]: ...

    def cancel(self) -> None:
        """Drops the sequence; without effect once it has ended. May be called from the event loop only."""
        ...


class ServedEngine(Protocol):
    @property
    def card(self) -> ModelCard: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """None for a base model."""
        ...

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """The sampling values the model's makers recommend, by field name."""
        ...

    async def submit(self, request: GenerationRequest) -> Stream:
        """Raises RequestError, RequestRefused or EngineStopped before anything was computed."""
        ...

    def stats(self) -> EngineStats: ...
