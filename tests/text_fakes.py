"""A model without a model: bytes are its tokens, and it answers every prompt with the prompt itself, then EOS."""

from collections.abc import Callable, Sequence
from typing import Any

from fakes import FakeExecutor, FakeSequence, make_info
from headway.engine.generation import ModelCard, StartupReport
from headway.engine.parts import EngineParts

EOS, MARK, VOCAB_SIZE = 256, 257, 260  # the last two ids have no text
_SPECIAL = {EOS: b"<eos>", MARK: b"<mark>"}


class FakeTokenizer:
    strips_space = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else _SPECIAL.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        return token_id in _SPECIAL


class FakeChatTemplate:
    def prompt_ids(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return FakeTokenizer().encode("|".join(message["content"] for message in messages))


def echo(sequence: FakeSequence) -> int:
    num_output_tokens = len(sequence.token_ids) - sequence.new.num_prompt_tokens
    if num_output_tokens < sequence.new.num_prompt_tokens:
        return sequence.token_ids[num_output_tokens]
    return EOS


def echo_executor(before_step: Callable[[], object] = lambda: None, **info: Any) -> FakeExecutor:
    settings = {"max_batch_rows": 32, "vocab_size": VOCAB_SIZE, **info}
    return FakeExecutor(make_info(**settings), next_token=echo, before_step=before_step)


def make_parts(executor: FakeExecutor, generation_defaults: dict[str, Any] | None = None) -> EngineParts:
    max_context = executor.info.max_context
    return EngineParts(
        executor=executor,
        tokenizer=FakeTokenizer(),
        chat_template=FakeChatTemplate(),
        card=ModelCard("echo", "fake", "none", "1", "0" * 64, max_context, VOCAB_SIZE, 0),
        eos_token_ids=frozenset({EOS}),
        generation_defaults=generation_defaults or {},
        report=StartupReport(
            0, 0, 0, executor.info.num_blocks, executor.info.block_size, max_context, 1, 1, False, "fake", 0.0
        ),
    )


def ids(text: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(text.encode() if isinstance(text, str) else text)
