"""Rope parameters in config.json. transformers 4 writes rope_theta and rope_scaling, 5 one dict, rope_parameters, which
may hold one dict for each layer type."""

from typing import Any

from headway.errors import UnsupportedModel
from headway.model.architecture import RopeScaling
from headway.model.config_reader import MAX_CONTEXT, ConfigReader

SLIDING, FULL = "sliding_attention", "full_attention"
_ORIGINAL = "original_max_position_embeddings"
_KNOWN_KEYS = {
    "rope_type", "type", "rope_theta", "factor", _ORIGINAL, "low_freq_factor", "high_freq_factor", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor", "finetuned",
}  # fmt: skip


def hf_rope(
    config: ConfigReader, layer_type: str, theta_key: str, default_theta: float, *, only_nested: bool = False
) -> tuple[float, RopeScaling]:
    """(theta, scaling) of a layer type. Parameters for this layer type come first; those for all layers count unless
    ``only_nested``; theta may also stand beside them, as ``theta_key``."""
    parameters = {**_object(config, "rope_parameters"), **_object(config, "rope_scaling")}
    if FULL in parameters or SLIDING in parameters:
        if parameters.keys() - {FULL, SLIDING}:
            raise UnsupportedModel(f"{config.where}: rope parameters for layer types and for all layers together")
        parameters = _object(ConfigReader(parameters, f"{config.where}: rope parameters"), layer_type)
    elif only_nested:
        parameters = {}
    rope = ConfigReader(parameters, f"{config.where}: rope parameters")
    theta = rope.positive("rope_theta", config.positive(theta_key, default_theta), above=1)
    return theta, _scaling(rope, config)


def _object(reader: ConfigReader, key: str) -> dict[str, Any]:
    value = reader.get(key) or {}
    if not isinstance(value, dict):
        raise reader.error(key, f"must be an object, not {value!r:.80}")
    return value


def _scaling(rope: ConfigReader, config: ConfigReader) -> RopeScaling:
    kind = _kind(rope)
    for key, value in rope.values.items():
        neutral = (None, 1) if key == "partial_rotary_factor" else (None,)
        if key not in _KNOWN_KEYS - {"partial_rotary_factor"} and value not in neutral:
            raise UnsupportedModel(f"{rope.where}: {key} = {value!r:.80} is not supported")
    if kind == "linear":
        original = rope.integer(_ORIGINAL, 0, low=0, high=MAX_CONTEXT)
        return RopeScaling("linear", rope.positive("factor"), original)
    if kind == "llama3":
        return _llama3(rope, _original_length(rope, config))
    if kind == "yarn":
        return _yarn(rope, _original_length(rope, config), config.integer("max_position_embeddings", high=MAX_CONTEXT))
    return RopeScaling()


def _kind(rope: ConfigReader) -> str:
    """Both spellings of the key are in use; where both stand they must agree."""
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind != rope.text("type", kind):
        raise rope.error("rope_type", f"is {kind!r} but type is {rope.get('type')!r}")
    if kind not in ("default", "none", "linear", "llama3", "yarn"):
        raise UnsupportedModel(f"{rope.where}: rope scaling {kind!r} is not supported; known: linear, llama3, yarn")
    return kind


def _original_length(rope: ConfigReader, config: ConfigReader) -> int:
    """Beside the rope parameters (where Phi-3 put it), in them, or the length the model has now."""
    longest = config.integer("max_position_embeddings", high=MAX_CONTEXT)
    return config.integer(_ORIGINAL, rope.integer(_ORIGINAL, longest, high=MAX_CONTEXT), high=MAX_CONTEXT)


def _llama3(rope: ConfigReader, original: int) -> RopeScaling:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"is {low}, not below high_freq_factor, {high}")
    return RopeScaling("llama3", rope.positive("factor"), original, low, high)


def _yarn(rope: ConfigReader, original: int, longest: int) -> RopeScaling:
    return RopeScaling(
        kind="yarn",
        factor=rope.positive("factor", longest / original),
        original_max_position=original,
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        attention_factor=_optional(rope, "attention_factor"),
        mscale=_optional(rope, "mscale"),
        mscale_all_dim=_optional(rope, "mscale_all_dim"),
        truncate=rope.boolean("truncate", True),
    )


def _optional(reader: ConfigReader, key: str) -> float | None:
    return None if reader.get(key) is None else reader.number(key)
