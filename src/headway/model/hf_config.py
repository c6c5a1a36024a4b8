"""config.json and generation_config.json of a Hugging Face folder -> Architecture.

What a missing key means is what transformers' own configuration classes take it for. A feature that is asked for and
not built here is refused by name; so are model types and rope scalings we do not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import UnsupportedModel
from headway.model.architecture import Architecture, LayerKind, RopeScaling
from headway.model.config_reader import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    ConfigReader,
    check_architecture,
    family_traits,
    max_context,
)
from headway.model.hf_rope import FULL, SLIDING, hf_rope


@dataclass(frozen=True, slots=True)
class _ModelType:
    """A ``model_type`` and the defaults of its configuration class."""

    family: str
    class_name: str
    head_dim: int = 0  # 0: hidden_size / heads
    rope_theta: float = 10000.0
    tied: bool = False


MODEL_TYPES = {
    "llama": _ModelType("llama", "LlamaForCausalLM"),
    "mistral": _ModelType("llama", "MistralForCausalLM"),
    "qwen2": _ModelType("qwen2", "Qwen2ForCausalLM"),
    "qwen3": _ModelType("qwen3", "Qwen3ForCausalLM", head_dim=128),
    "gemma3_text": _ModelType("gemma3", "Gemma3ForCausalLM", head_dim=256, rope_theta=1e6, tied=True),
}

# Keys that change what a model computes in ways not built here, unless null, false, zero or empty ...
_UNSUPPORTED_FEATURES = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "quantization_config",
    "vision_config",
    "text_config",
    "audio_config",
    "use_bidirectional_attention",
    "attention_chunk_size",
    "is_encoder_decoder",
    "use_mrope",
    "kv_lora_rank",
    "no_rope_layers",
)
# ... and multipliers, unless 1.
_UNSUPPORTED_MULTIPLIERS = (
    "attention_multiplier",
    "embedding_multiplier",
    "logit_scale",
    "logits_scaling",
    "partial_rotary_factor",
    "residual_multiplier",
)


def hf_architecture(config: Mapping[str, Any], generation: Mapping[str, Any], where: str) -> Architecture:
    """``generation`` is generation_config.json, which may add end-of-sequence ids; ``where`` is named in errors."""
    reader = ConfigReader(config, where)
    kind = _model_type(reader)
    _refuse_unsupported(reader)
    heads = reader.integer("num_attention_heads", high=MAX_HEADS)
    hidden = reader.integer("hidden_size", high=MAX_WIDTH)
    head_dim = reader.integer("head_dim", kind.head_dim or _even_share(reader, hidden, heads), high=MAX_HEAD_DIM)
    layers = _layers(reader, kind)
    attention_bias = kind.class_name != "MistralForCausalLM" and reader.boolean("attention_bias", False)
    arch = Architecture(
        family=kind.family,
        vocab_size=reader.integer("vocab_size", high=MAX_VOCAB),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size", high=MAX_WIDTH),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads, high=MAX_HEADS),
        head_dim=head_dim,
        norm_eps=reader.positive("rms_norm_eps", 1e-6),
        max_context=_longest(reader, layers),
        layers=layers,
        activation=_activation(reader, kind.family),
        attention_scale=reader.positive("query_pre_attn_scalar", 256) ** -0.5 if kind.family == "gemma3" else 0.0,
        qkv_bias=kind.family == "qwen2" or attention_bias,
        output_bias=kind.family != "qwen2" and attention_bias,
        mlp_bias=kind.class_name == "LlamaForCausalLM" and reader.boolean("mlp_bias", False),
        tied_embeddings=reader.boolean("tie_word_embeddings", kind.tied),
        bos_token_id=next(iter(reader.token_ids("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(reader, ConfigReader(generation, f"{where} (generation_config.json)")),
        **family_traits(kind.family, hidden),
    )
    return check_architecture(arch, where)


def _model_type(reader: ConfigReader) -> _ModelType:
    name = reader.text("model_type")
    if name not in MODEL_TYPES:
        raise UnsupportedModel(f"{reader.where}: model_type {name!r} is not known; known: {', '.join(MODEL_TYPES)}")
    kind = MODEL_TYPES[name]
    classes = reader.get("architectures") or [kind.class_name]
    if classes != [kind.class_name]:
        raise UnsupportedModel(
            f"{reader.where}: architectures is {classes!r:.120}; a {name} model is served only as {kind.class_name}"
        )
    return kind


def _refuse_unsupported(reader: ConfigReader) -> None:
    for key in _UNSUPPORTED_FEATURES:
        if reader.get(key):
            raise UnsupportedModel(
                f"{reader.where}: {key} = {reader.get(key)!r:.80} is a feature that is not supported"
            )
    for key in _UNSUPPORTED_MULTIPLIERS:
        if reader.get(key) not in (None, 1):
            raise UnsupportedModel(f"{reader.where}: {key} = {reader.get(key)!r:.80} is not supported, only 1")


def _even_share(reader: ConfigReader, hidden: int, heads: int) -> int:
    if hidden % heads and reader.get("head_dim") is None:
        raise reader.error(
            "hidden_size", f"{hidden} is not a multiple of {heads} attention heads, and head_dim is missing"
        )
    return hidden // heads


def _activation(reader: ConfigReader, family: str) -> str:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3" else ("hidden_act", "silu")
    name = reader.text(key, default)
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if name not in known:
        raise UnsupportedModel(f"{reader.where}: {key} {name!r} is not supported; known: {', '.join(known)}")
    return known[name]


def _eos_token_ids(config: ConfigReader, generation: ConfigReader) -> tuple[int, ...]:
    return tuple(dict.fromkeys(config.token_ids("eos_token_id") + generation.token_ids("eos_token_id")))


# -- layers ----------------------------------------------------------------------------------------


def _layers(reader: ConfigReader, kind: _ModelType) -> tuple[LayerKind, ...]:
    window = _window(reader, kind)
    types = _layer_types(reader, kind, window, reader.integer("num_hidden_layers", high=MAX_LAYERS))
    kinds = {
        FULL: LayerKind(0, *hf_rope(reader, FULL, "rope_theta", kind.rope_theta)),
        SLIDING: LayerKind(window, *_sliding_rope(reader, kind)),
    }
    return tuple(kinds[layer_type] for layer_type in types)


def _sliding_rope(reader: ConfigReader, kind: _ModelType) -> tuple[float, RopeScaling]:
    """Gemma 3's sliding layers have their own theta, and no scaling unless it is written for them alone."""
    if kind.family == "gemma3":
        return hf_rope(reader, SLIDING, "rope_local_base_freq", 10000.0, only_nested=True)
    return hf_rope(reader, SLIDING, "rope_theta", kind.rope_theta)


def _window(reader: ConfigReader, kind: _ModelType) -> int:
    """Tokens that a sliding layer sees, 0 for all. Absent is 4096 where the class says so; null is all."""
    if kind.class_name == "LlamaForCausalLM":
        if reader.get("sliding_window") and reader.get("use_sliding_window") is not False:
            raise UnsupportedModel(
                f"{reader.where}: a llama model has no sliding_window; if it was trained with one, the model_type is "
                "mistral, if not, remove the key"
            )
        return 0
    if kind.family in ("qwen2", "qwen3") and not reader.boolean("use_sliding_window", False):
        return 0
    if "sliding_window" in reader.values and reader.get("sliding_window") is None:
        return 0
    return reader.integer("sliding_window", 4096, high=MAX_CONTEXT)


def _layer_types(reader: ConfigReader, kind: _ModelType, window: int, num_layers: int) -> list[str]:
    types = reader.get("layer_types")
    if types is None:
        return [_default_layer_type(reader, kind, window, i) for i in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers:
        raise reader.error("layer_types", f"must be a list with one entry for each of the {num_layers} layers")
    for layer_type in types:
        if layer_type not in (SLIDING, FULL):
            raise UnsupportedModel(f"{reader.where}: the layer type {layer_type!r:.80} is not supported")
    return types


def _default_layer_type(reader: ConfigReader, kind: _ModelType, window: int, index: int) -> str:
    if kind.family == "gemma3":  # every sixth layer is global
        old_name = reader.integer("_sliding_window_pattern", 6)
        return FULL if (index + 1) % reader.integer("sliding_window_pattern", old_name) == 0 else SLIDING
    if kind.family in ("qwen2", "qwen3"):
        return SLIDING if window and index >= reader.integer("max_window_layers", 28, low=0) else FULL
    return SLIDING if window else FULL


def _longest(reader: ConfigReader, layers: tuple[LayerKind, ...]) -> int:
    scaling = next((layer.rope_scaling for layer in layers if layer.window == 0), layers[0].rope_scaling)
    return max_context(reader.integer("max_position_embeddings", high=MAX_CONTEXT), scaling)
