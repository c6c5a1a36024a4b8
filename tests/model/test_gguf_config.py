from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.errors import CheckpointError, UnsupportedModel
from headway.model.architecture import Architecture, RopeScaling
from headway.model.gguf import GGUFFile, read_gguf
from headway.model.gguf_config import gguf_architecture
from headway.model.tensor import FORMATS, StoredTensor
from tiny_checkpoints import tiny_model, write_gguf


class Files:
    """Small GGUF files, one a family, with their metadata or tensors changed as read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[str, GGUFFile] = {}

    def architecture(self, family: str, changes: dict[str, Any] | None = None, vector: Any = None) -> Architecture:
        """``changes``: key -> value, None to remove it; ``vector`` becomes rope_freqs.weight."""
        if family not in self.read:
            write_gguf(tiny_model(family), self.folder / f"{family}.gguf")
            self.read[family] = read_gguf(self.folder / f"{family}.gguf")
        file = self.read[family]
        metadata = {k: v for k, v in (file.metadata | (changes or {})).items() if v is not None}
        tensors = dict(file.tensors)
        if vector is not None:
            values = np.array(vector, np.float32)
            data = values.view(np.uint8)
            tensors["rope_freqs.weight"] = StoredTensor("rope_freqs.weight", values.shape, FORMATS["F32"], data, "f")
        return gguf_architecture(GGUFFile(file.path, metadata, file.types, tensors))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("gguf"))


def windows(arch: Architecture) -> list[int]:
    return [layer.window for layer in arch.layers]


def test_an_unknown_architecture_lists_the_known_ones(files: Files) -> None:
    with pytest.raises(UnsupportedModel, match=r"'phi3' is not known; known: llama, qwen2, qwen3, gemma3"):
        files.architecture("llama", {"general.architecture": "phi3"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"general.type": "adapter"}, "a GGUF adapter"),
        ({"split.count": 3}, "join the parts"),
        ({"general.quantization_version": 1}, "quantization version 1"),
        ({"llama.expert_count": 8}, r"llama\.expert_count = 8"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"llama.attention.causal": False}, "causal"),
        ({"llama.some_new_feature": 1}, "some_new_feature"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "attn_factor"),
        ({"llama.rope.dimension_count": 8}, "dimension_count"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.attention.head_count_kv": [2, 1]}, "differs from layer to layer"),
        ({"llama.feed_forward_length": [96, 64]}, "differs from layer to layer"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
    ],
)
def test_features_that_are_not_built_are_named(files: Files, changes: dict, problem: str) -> None:
    with pytest.raises(UnsupportedModel, match=problem):
        files.architecture("llama", changes)


def test_the_same_features_switched_off_are_harmless(files: Files) -> None:
    off = {
        "llama.expert_count": 0,
        "llama.attn_logit_softcapping": 0.0,
        "llama.attention.causal": True,
        "llama.rope.scaling.attn_factor": 1.0,
        "llama.rope.scaling.type": "none",
        "llama.attention.head_count_kv": [2, 2],
        "llama.rope.dimension_count": 16,
        "split.count": 0,
    }
    assert files.architecture("llama", off) == files.architecture("llama")


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        *[
            (key, bad)
            for key in ("block_count", "attention.head_count")
            for bad in (0, -1, 1.0, True, "2", 2**31, None)
        ],
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", []),
        ("embedding_length", 0),
        ("embedding_length", None),
        ("attention.key_length", 15),
        ("context_length", None),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", "10000"),
        ("rope.scaling.factor", -2.0),
        ("vocab_size", 287),
    ],
)
def test_values_of_wrong_type_or_range(files: Files, key: str, bad: Any) -> None:
    with pytest.raises((CheckpointError, UnsupportedModel), match=r"llama\.gguf"):
        files.architecture("llama", {f"llama.{key}": bad})


def test_special_tokens(files: Files) -> None:
    arch = files.architecture("llama", {"tokenizer.ggml.eot_token_id": 257, "tokenizer.ggml.eom_token_id": 258})
    assert arch.eos_token_ids == (258, 257)
    assert arch.bos_token_id == 256
    with pytest.raises(CheckpointError, match="special token id 288"):
        files.architecture("llama", {"tokenizer.ggml.eos_token_id": 288})
    bare = files.architecture("llama", {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.bos_token_id": None})
    assert (bare.eos_token_ids, bare.bos_token_id) == ((), None)


# -- windows ---------------------------------------------------------------------------------------------------------


def test_a_llama_with_a_window_slides_everywhere(files: Files) -> None:
    assert windows(files.architecture("mistral")) == [24, 24]
    assert windows(files.architecture("llama")) == [0, 0]


def test_gemma_windows_and_thetas_by_layer(files: Files) -> None:
    arch = files.architecture("gemma3", {"gemma3.block_count": 7, "gemma3.attention.sliding_window_pattern": None})
    assert windows(arch) == [24] * 5 + [0, 24]
    assert [layer.rope_theta for layer in arch.layers] == [1e4] * 5 + [1e6, 1e4]
    pattern = {"gemma3.attention.sliding_window_pattern": [False, True, True], "gemma3.rope.freq_base_swa": 5e3}
    listed = files.architecture("gemma3", pattern)
    assert windows(listed) == [0, 24, 24]
    assert [layer.rope_theta for layer in listed.layers] == [1e6, 5e3, 5e3]
    everything = {"gemma3.attention.sliding_window": None, "gemma3.attention.sliding_window_pattern": None}
    assert windows(files.architecture("gemma3", everything)) == [0, 0, 0]


@pytest.mark.parametrize("pattern", [[True], [1, 0, 1], "x", 0, -1])
def test_a_malformed_pattern(files: Files, pattern: Any) -> None:
    with pytest.raises(CheckpointError, match="sliding_window_pattern"):
        files.architecture("gemma3", {"gemma3.attention.sliding_window_pattern": pattern})


def test_a_qwen_window_without_a_pattern_is_refused(files: Files) -> None:
    with pytest.raises(UnsupportedModel, match="without a pattern"):
        files.architecture("qwen2", {"qwen2.attention.sliding_window": 16})


# -- scale and rope --------------------------------------------------------------------------------------------------


def test_gemma_27b_is_the_one_that_scales_by_hidden_over_heads(files: Files) -> None:
    assert files.architecture("gemma3").scale == 32**-0.5
    big = {"gemma3.block_count": 62, "gemma3.attention.sliding_window_pattern": None}
    assert files.architecture("gemma3", big).scale == 16**-0.5
    assert files.architecture("gemma3", big | {"gemma3.attention.scale": 0.125}).scale == 0.125


def rope(files: Files, **keys: Any) -> tuple[RopeScaling, int]:
    arch = files.architecture("qwen2", {f"qwen2.rope.{key.replace('__', '.')}": value for key, value in keys.items()})
    return arch.layers[0].rope_scaling, arch.max_context


def test_linear_scaling_also_without_a_type_and_by_its_old_key(files: Files) -> None:
    assert rope(files, scaling__type="linear", scaling__factor=4.0) == (RopeScaling("linear", 4.0), 256)
    assert rope(files, scaling__factor=4.0) == (RopeScaling("linear", 4.0), 256)
    assert rope(files, scale_linear=4.0) == (RopeScaling("linear", 4.0), 256)
    assert rope(files, scaling__type="none", scaling__factor=4.0) == (RopeScaling(), 256)


def test_yarn_reaches_original_times_factor(files: Files) -> None:
    keys = {"scaling__type": "yarn", "scaling__factor": 4.0}
    assert rope(files, **keys) == (RopeScaling("yarn", 4.0, 256), 1024)
    keys |= {"scaling__original_context_length": 64, "scaling__yarn_beta_fast": 16.0, "scaling__yarn_beta_slow": 2.0}
    assert rope(files, **keys) == (RopeScaling("yarn", 4.0, 64, beta_fast=16.0, beta_slow=2.0), 256)


def test_gemma_scales_only_its_global_layers(files: Files) -> None:
    arch = files.architecture("gemma3", {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0})
    assert [layer.rope_scaling.kind for layer in arch.layers] == ["none", "linear", "none"]


def test_rope_divisors_are_used(files: Files) -> None:
    divisors = (1.0, 1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0)
    arch = files.architecture("llama", vector=divisors)
    assert arch.layers[1].rope_scaling == RopeScaling("divisors", divisors=divisors)


@pytest.mark.parametrize("vector", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [np.inf], [1.0] * 7 + [-2.0]])
def test_bad_rope_divisors(files: Files, vector: list[float]) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        files.architecture("llama", vector=vector)


def test_rope_divisors_beside_another_scaling_are_refused(files: Files) -> None:
    with pytest.raises(UnsupportedModel, match="together with rope scaling linear"):
        files.architecture("llama", {"llama.rope.scaling.factor": 2.0}, vector=[1.0] * 8)
