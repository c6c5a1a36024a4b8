"""GGUF metadata (and what only the tensors tell) -> Architecture.

Keys are ``{architecture}.name`` as in the GGUF specification. A key under the architecture's name that we do not know
would change the maths, so it is refused by name rather than ignored. Llama 3's rope scaling is no key but a tensor,
``rope_freqs.weight``: what each frequency is divided by.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.errors import CheckpointError, UnsupportedModel
from headway.model.architecture import Architecture, LayerKind, RopeScaling
from headway.model.config_reader import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    ConfigReader,
    check_architecture,
    family_traits,
    max_context,
)
from headway.model.gguf import GGUFFile
from headway.model.quant import read_vector
from headway.model.tensor import StoredTensor

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
ROPE_DIVISORS = "rope_freqs.weight"
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

_KNOWN_KEYS = {
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.scale", "attention.sliding_window", "attention.sliding_window_pattern", "attention.value_length",
    "block_count", "context_length", "embedding_length", "feed_forward_length", "rope.dimension_count",
    "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.type", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "vocab_size",
    "rope.scaling.finetuned",  # a remark, no parameter
}  # fmt: skip
# Keys whose feature is not built here, with the values that mean it is off.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0,),
    "embedding_scale": (1.0,),
    "residual_scale": (1.0,),
    "attention.causal": (True,),
    "pooling_type": (0,),
    "use_parallel_residual": (False,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "tensor_data_layout": ("Meta AI original pth",),  # the interleaved rope order of every Llama GGUF
}


def gguf_architecture(file: GGUFFile) -> Architecture:
    where = str(file.path)
    family = _family(file.metadata, where)
    reader = ConfigReader(file.metadata, where, f"{family}.")
    _refuse_unsupported(reader)
    heads = _same_for_all_layers(reader, "attention.head_count", MAX_HEADS)
    hidden = reader.integer("embedding_length", high=MAX_WIDTH)
    head_dim = _head_dim(reader, hidden, heads)
    scaling = _rope_scaling(reader, file.tensors, head_dim)
    layers = _layers(reader, family, scaling)
    tokenizer = ConfigReader(file.metadata, where, "tokenizer.ggml.")
    arch = Architecture(
        family=family,
        vocab_size=_vocab_size(reader, file.tensors),
        hidden_size=hidden,
        intermediate_size=_same_for_all_layers(reader, "feed_forward_length", MAX_WIDTH),
        num_heads=heads,
        num_kv_heads=_same_for_all_layers(reader, "attention.head_count_kv", MAX_HEADS, heads),
        head_dim=head_dim,
        norm_eps=reader.positive("attention.layer_norm_rms_epsilon"),
        max_context=max_context(reader.integer("context_length", high=MAX_CONTEXT), scaling),
        layers=layers,
        activation="gelu_tanh" if family == "gemma3" else "silu",
        attention_scale=_attention_scale(reader, family, hidden, heads, head_dim),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        bos_token_id=next(iter(tokenizer.token_ids("bos_token_id")), None),
        eos_token_ids=tuple(dict.fromkeys(i for key in _EOS_KEYS for i in tokenizer.token_ids(key))),
        **family_traits(family, hidden),
    )
    return check_architecture(arch, where)


def _family(metadata: Mapping[str, Any], where: str) -> str:
    general = ConfigReader(metadata, where, "general.")
    if general.text("type", "model") != "model":
        raise UnsupportedModel(f"{where}: a GGUF {general.text('type')}, not a model; name the model's own file")
    if ConfigReader(metadata, where, "split.").integer("count", 1, low=0) > 1:
        raise UnsupportedModel(f"{where}: one part of a split GGUF; join the parts first (llama-gguf-split --merge)")
    if general.integer("quantization_version", 2) != 2:
        raise UnsupportedModel(
            f"{where}: quantization version {general.get('quantization_version')} is not supported, only 2"
        )
    family = general.text("architecture")
    if family not in FAMILIES:
        raise UnsupportedModel(f"{where}: architecture {family!r} is not known; known: {', '.join(FAMILIES)}")
    return family


def _refuse_unsupported(reader: ConfigReader) -> None:
    for key, value in reader.values.items():
        name = key.removeprefix(reader.prefix)
        if key == name or name in _KNOWN_KEYS or value in _NEUTRAL_VALUES.get(name, ()):
            continue
        raise UnsupportedModel(f"{reader.where}: {key} = {value!r:.80} is a feature that is not supported")


def _same_for_all_layers(reader: ConfigReader, key: str, high: int, default: int | None = None) -> int:
    """A number that may be written once or once for each layer; layers that differ are not supported."""
    value = reader.get(key)
    if not isinstance(value, list):
        return reader.integer(key, default, high=high)
    if not value or any(v != value[0] for v in value):
        raise UnsupportedModel(
            f"{reader.where}: {reader.prefix}{key} differs from layer to layer, which is not supported"
        )
    return ConfigReader({key: value[0]}, reader.where).integer(key, high=high)


def _head_dim(reader: ConfigReader, hidden: int, heads: int) -> int:
    if reader.get("attention.key_length") is None and hidden % heads:
        raise reader.error(
            "embedding_length", f"{hidden} is not a multiple of {heads} heads, and key_length is missing"
        )
    head_dim = reader.integer("attention.key_length", max(1, hidden // heads), high=MAX_HEAD_DIM)
    for key in ("attention.value_length", "rope.dimension_count"):
        if reader.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(f"{reader.where}: {reader.prefix}{key} differs from the key length {head_dim}")
    return head_dim


def _vocab_size(reader: ConfigReader, tensors: Mapping[str, StoredTensor]) -> int:
    """The rows of the embedding table; a declared size must agree."""
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{reader.where}: tensor 'token_embd.weight' is missing; get a sound copy of the file")
    rows = tensors["token_embd.weight"].shape[0]
    if reader.integer("vocab_size", rows) != rows:
        raise reader.error("vocab_size", f"is {reader.get('vocab_size')} but the embedding table has {rows} rows")
    return rows


def _attention_scale(reader: ConfigReader, family: str, hidden: int, heads: int, head_dim: int) -> float:
    """Gemma 3 scales by its key length, except the 27B (62 layers), which scales by hidden / heads; GGUF has no key for
    this, so the layer count tells, as in llama.cpp."""
    if reader.get("attention.scale") is not None:
        return reader.positive("attention.scale")
    if family == "gemma3" and reader.integer("block_count") == 62:
        return (hidden // heads) ** -0.5
    return head_dim**-0.5


# -- layers: windows and rope ------------------------------------------------------------------------------------------


def _layers(reader: ConfigReader, family: str, scaling: RopeScaling) -> tuple[LayerKind, ...]:
    """Gemma 3's sliding layers have their own theta (10000 unless given) and no scaling."""
    num_layers = reader.integer("block_count", high=MAX_LAYERS)
    window = reader.integer("attention.sliding_window", 0, low=0, high=MAX_CONTEXT)
    theta = reader.positive("rope.freq_base", 10000.0, above=1)
    own_theta = reader.positive("rope.freq_base_swa", 10000.0 if family == "gemma3" else theta, above=1)
    sliding = LayerKind(window, own_theta, RopeScaling() if family == "gemma3" else scaling)
    everything = LayerKind(0, theta, scaling)
    return tuple(sliding if slides else everything for slides in _pattern(reader, family, window, num_layers))


def _pattern(reader: ConfigReader, family: str, window: int, num_layers: int) -> list[bool]:
    """For each layer, whether it slides: the pattern is a list of that, or n for "every n-th does not" (Gemma 3: 6)."""
    pattern = reader.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(type(slides) is bool for slides in pattern):
            raise reader.error("attention.sliding_window_pattern", f"is not {num_layers} truth values")
        return pattern
    if not window:
        return [False] * num_layers
    if pattern is None and family in ("qwen2", "qwen3"):
        raise UnsupportedModel(
            f"{reader.where}: {reader.prefix}attention.sliding_window without a pattern is not supported"
        )
    if pattern is None and family == "llama":  # Mistral
        return [True] * num_layers
    every = reader.integer("attention.sliding_window_pattern", 6)
    return [(i + 1) % every != 0 for i in range(num_layers)]


def _rope_scaling(reader: ConfigReader, tensors: Mapping[str, StoredTensor], head_dim: int) -> RopeScaling:
    scaling = _scaling_from_keys(reader)
    if ROPE_DIVISORS not in tensors:
        return scaling
    if scaling.kind != "none":
        raise UnsupportedModel(
            f"{reader.where}: {ROPE_DIVISORS} together with rope scaling {scaling.kind} is not supported"
        )
    divisors = read_vector(tensors[ROPE_DIVISORS])
    if divisors.shape != (head_dim // 2,) or np.any(divisors <= 0):
        raise CheckpointError(f"{reader.where}: {ROPE_DIVISORS} does not hold {head_dim // 2} positive divisors")
    return RopeScaling("divisors", divisors=tuple(divisors.tolist()))


def _scaling_from_keys(reader: ConfigReader) -> RopeScaling:
    """A factor without a type is linear, under its own or its old name."""
    factor = reader.number("rope.scaling.factor", reader.number("rope.scale_linear", 0.0))
    kind = reader.text("rope.scaling.type", "linear" if factor else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{reader.where}: rope scaling {kind!r} is not supported; known: linear, yarn")
    if kind == "none" or factor in (0.0, 1.0):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=reader.integer(
            "rope.scaling.original_context_length", reader.integer("context_length"), high=MAX_CONTEXT
        ),
        beta_fast=reader.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=reader.positive("rope.scaling.yarn_beta_slow", 1.0),
    )
