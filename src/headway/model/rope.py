"""Rotary position embeddings: frequencies by scaling kind, and the table of cosines and sines that the ops read.

Dimension pair i of a head of width d turns by ``position * theta ** (-2i / d)`` (Su et al., RoFormer,
arXiv:2104.09864), changed by the scaling kind. Everything is computed in float64 and rounded once.
"""

import math

import numpy as np
from numpy.typing import NDArray

from headway.model.architecture import LayerKind, RopeScaling

Float64 = NDArray[np.float64]


def rope_table(layer: LayerKind, head_dim: int, max_context: int) -> NDArray[np.float32]:
    """[max_context, head_dim]: at each position head_dim / 2 cosines, then as many sines (times yarn's factor)."""
    frequencies, factor = rope_frequencies(layer, head_dim)
    angles = np.arange(max_context)[:, None] * frequencies
    table = np.empty((max_context, head_dim), np.float32)
    table[:, : head_dim // 2] = factor * np.cos(angles)
    table[:, head_dim // 2 :] = factor * np.sin(angles)
    return table


def rope_frequencies(layer: LayerKind, head_dim: int) -> tuple[Float64, float]:
    """(radians a position [head_dim / 2], the factor on cosines and sines)."""
    base = layer.rope_theta ** -(np.arange(0, head_dim, 2) / head_dim)
    scaling = layer.rope_scaling
    match scaling.kind:
        case "none":
            return base, 1.0
        case "linear":
            return base / scaling.factor, 1.0
        case "divisors":
            return base / np.array(scaling.divisors), 1.0
        case "llama3":
            return _llama3(base, scaling), 1.0
        case "yarn":
            return _yarn(base, scaling, layer.rope_theta), yarn_attention_factor(scaling)
    raise ValueError(f"unknown rope scaling {scaling.kind!r}")


def _llama3(base: Float64, scaling: RopeScaling) -> Float64:
    """Llama 3.1: long wavelengths are slowed by the factor, short ones kept, those between interpolated by how many
    turns they make in the original context (Meta's llama-models, ``apply_scaling``)."""
    turns = scaling.original_max_position * base / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return base * (kept + (1 - kept) / scaling.factor)


def _yarn(base: Float64, scaling: RopeScaling, theta: float) -> Float64:
    """YaRN (Peng et al., arXiv:2309.00071, section 3.2): dimensions that make more than ``beta_fast`` turns in the
    original context are kept, those with fewer than ``beta_slow`` are slowed by the factor, with a linear ramp over the
    dimensions between. ``truncate`` widens the ramp to whole dimensions, as the authors' code does."""
    head_dim = 2 * len(base)

    def dimension(turns: float) -> float:
        wavelengths = scaling.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(wavelengths) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    slowed = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
    return base * (1 - slowed) + base / scaling.factor * slowed


def yarn_attention_factor(scaling: RopeScaling) -> float:
    """The factor that sharpens attention over longer contexts (YaRN, section 3.4): 0.1 ln(factor) + 1 unless given.
    With both mscales (DeepSeek-V2) it is the ratio of the two factors they make."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
