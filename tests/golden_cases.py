"""The models whose logits are recorded in tests/golden: tiny random ones of every family.

Weights are not stored: a tiny model is made again from its seed (``tiny_checkpoints``), and its digest is compared.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway.model.checkpoint import Checkpoint, open_checkpoint
from tiny_checkpoints import TinyModel, tiny_model, write_folder

GOLDEN = Path(__file__).parent / "golden"
NUM_TOKENS = 48  # longer than any window below, so that windows matter

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_LINEAR = {"rope_type": "linear", "factor": 8.0}


@dataclass(frozen=True)
class GoldenCase:
    name: str
    family: str
    dtype: str = "F32"  # as written to disk; all arithmetic is float32
    changes: dict[str, Any] = field(default_factory=dict)  # of the family's config.json

    @property
    def path(self) -> Path:
        return GOLDEN / f"{self.name}.npz"

    def golden(self) -> dict[str, np.ndarray]:
        return dict(np.load(self.path))

    def model(self) -> TinyModel:
        return tiny_model(self.family, seed=sum(map(ord, self.name)), **self.changes)

    def token_ids(self) -> list[int]:
        return np.random.default_rng(len(self.name)).integers(0, 256, NUM_TOKENS).tolist()


CASES = (
    GoldenCase("llama", "llama"),
    GoldenCase("llama-tied-bf16", "llama", "BF16", {"tie_word_embeddings": True}),
    GoldenCase("llama-rope-llama3", "llama", "F16", {"rope_scaling": _LLAMA3}),
    GoldenCase("llama-rope-yarn", "llama", "BF16", {"rope_scaling": _YARN}),
    GoldenCase("llama-rope-linear-biases", "llama", "F32", {"rope_scaling": _LINEAR, **_BIASES}),
    GoldenCase("mistral", "mistral", "BF16", {"sliding_window": 10}),
    GoldenCase("qwen2", "qwen2", "BF16"),
    GoldenCase("qwen2-untied", "qwen2", "F32", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    GoldenCase("qwen3", "qwen3", "BF16"),
    GoldenCase("gemma3", "gemma3", "BF16", {"sliding_window": 10, "query_pre_attn_scalar": 12}),
    GoldenCase("gemma3-rope-linear", "gemma3", "F32", {"sliding_window": 16, "rope_scaling": _LINEAR}),
)  # fmt: skip


def digest(model: TinyModel) -> str:
    """SHA-256 of a model's float32 tensors in order: the same seed must give the same weights everywhere."""
    sha = hashlib.sha256()
    for name, values in model.tensors.items():
        sha.update(name.encode())
        sha.update(values.tobytes())
    return sha.hexdigest()


def load_tiny(case: GoldenCase, folder: Path) -> Checkpoint:
    """The case's model, written to ``folder`` and opened from there as any other."""
    model = case.model()
    recorded = str(case.golden()["digest"])
    assert digest(model) == recorded, f"{case.name}: NumPy now draws other weights from this seed; run write_golden.py"
    write_folder(model, folder, case.dtype)
    return open_checkpoint(folder)
