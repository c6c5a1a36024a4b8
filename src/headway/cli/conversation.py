"""A conversation with an engine in this process, one answer at a time."""

import asyncio
from collections.abc import Callable
from typing import Any

from headway.config import SamplingDefaults
from headway.core.request import FinishReason, SamplingParams
from headway.engine.async_engine import AsyncEngine
from headway.engine.generation import GenerationRequest
from headway.engine.sampling_defaults import effective_sampling
from headway.errors import EngineStopped, UnsupportedModel


class Conversation:
    """Owns the messages so far. A question that gets no answer leaves no trace in them.

    Raises UnsupportedModel for a model without a chat template.
    """

    def __init__(self, engine: AsyncEngine, sampling: SamplingParams, system: str = "") -> None:
        if engine.chat_template is None:
            name = engine.card.name
            raise UnsupportedModel(f"{name} has no chat template: let it go on from a text with `headway run {name}`")
        self._engine = engine
        self._template = engine.chat_template
        self._sampling = sampling
        self._start: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)

    def reset(self) -> None:
        self._messages = list(self._start)

    async def ask(self, question: str, show: Callable[[str], None]) -> FinishReason:
        """Streams the answer to ``show``. Cancelling the task stops it with ABORT; the part so far is kept."""
        messages = [*self._messages, {"role": "user", "content": question}]
        pieces: list[str] = []

        def keep(text: str) -> None:
            pieces.append(text)
            show(text)

        prompt = await asyncio.to_thread(self._template.prompt_ids, messages)  # Ctrl-C works meanwhile
        reason = await stream_answer(self._engine, prompt, self._sampling, keep)
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        return reason


async def stream_answer(
    engine: AsyncEngine, prompt: list[int], sampling: SamplingParams, show: Callable[[str], None]
) -> FinishReason:
    """Gives each piece of the answer to ``show``. Cancelling the task ends it with ABORT."""
    try:
        stream = await engine.submit(GenerationRequest(tuple(prompt), sampling))
        async for delta in stream:
            show(delta.text)
            if delta.finish_reason is not None:
                return delta.finish_reason
    except asyncio.CancelledError:
        return FinishReason.ABORT
    raise EngineStopped("the engine dropped the answer before its end")


def sampling_params(engine: AsyncEngine, defaults: SamplingDefaults, **asked: Any) -> SamplingParams:
    """The sampling of a command: its options, else the settings, else the model's own."""
    return SamplingParams(**{**asked, **effective_sampling(asked, defaults, engine.generation_defaults)})
