"""Typed look-ups in a model's configuration, from config.json or GGUF metadata: a wrong type or range is named."""

import math
from collections.abc import Mapping
from typing import Any

from headway.errors import CheckpointError
from headway.model.architecture import Architecture, RopeScaling

MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_CONTEXT = 1 << 26


class ConfigReader:
    """``values`` of ``where``. A missing key and a null are the same: the default, or an error when there is none.

    ``prefix`` stands before every key ("llama." in GGUF).
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {self.prefix}{key} {problem}")

    def get(self, key: str) -> Any:
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 31) -> int:
        value = self._required(key, default)
        if type(value) is not int:
            raise self.error(key, f"must be an integer, not {value!r:.80}")
        if not low <= value <= high:
            raise self.error(key, f"is {value}, not within {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number from ``low`` to ``high``."""
        value = self._required(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.error(key, f"must be a finite number, not {value!r:.80}")
        if not low <= value <= high:
            raise self.error(key, f"is {value}, not within {low} to {high}")
        return float(value)

    def positive(self, key: str, default: float | None = None, *, above: float = 0.0, high: float = 1e12) -> float:
        value = self.number(key, default, high=high)
        if value <= above:
            raise self.error(key, f"is {value}, not above {above:g}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        if type(value) is not bool:
            raise self.error(key, f"must be true or false, not {value!r:.80}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if type(value) is not str:
            raise self.error(key, f"must be a text, not {value!r:.80}")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """No id, one, or a list of them."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < MAX_VOCAB:
                raise self.error(key, f"holds {token_id!r:.80}, which is not a token id")
        return tuple(ids)

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.error(key, "is missing; get a sound copy of the model")
        return default


def family_traits(family: str, hidden_size: int) -> dict[str, Any]:
    """Fields of ``Architecture`` that are the same for every model of a family, and in no file."""
    gemma = family == "gemma3"
    return {
        "qk_norm": family in ("qwen3", "gemma3"),
        "sandwich_norms": gemma,
        "embedding_scale": hidden_size**0.5 if gemma else 1.0,
    }


def check_architecture(arch: Architecture, where: str) -> Architecture:
    """Facts that must fit together, whichever file they came from. Returns ``arch``."""
    if arch.num_heads % arch.num_kv_heads:
        raise CheckpointError(
            f"{where}: {arch.num_heads} attention heads cannot share {arch.num_kv_heads} key-value heads evenly"
        )
    if arch.head_dim % 2:
        raise CheckpointError(f"{where}: the head dimension {arch.head_dim} is odd, so rope cannot pair its dimensions")
    ids = (*arch.eos_token_ids, *(() if arch.bos_token_id is None else (arch.bos_token_id,)))
    for token_id in ids:
        if token_id >= arch.vocab_size:
            raise CheckpointError(
                f"{where}: the special token id {token_id} is not in the vocabulary of {arch.vocab_size} tokens"
            )
    return arch


def max_context(written: int, scaling: RopeScaling) -> int:
    """Positions a model is good for. Where the scaling names the original length (yarn always does) it is that times
    the factor; otherwise the length as written, which llama3 and most linear models give scaled already."""
    if scaling.kind in ("linear", "yarn") and scaling.original_max_position:
        return min(MAX_CONTEXT, int(scaling.original_max_position * scaling.factor))
    return written
