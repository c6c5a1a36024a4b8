"""What an engine is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.executor import Executor
from headway.engine.generation import ModelCard, StartupReport
from headway.engine.profile import Profiler
from headway.engine.tokenizer import Tokenizer


class ChatTemplate(Protocol):
    def prompt_ids(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model, ready to be driven. ``generation_defaults`` are its own sampling values, by field name."""

    executor: Executor
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    card: ModelCard
    eos_token_ids: frozenset[int]
    generation_defaults: Mapping[str, Any]
    report: StartupReport
    profiler: Profiler | None = None  # None: this backend has none
