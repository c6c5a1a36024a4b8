"""What a decoder is made of, whichever file format or family it came from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.ops.weights import AnyMatrix


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """``kind``: none, linear, llama3, yarn or divisors. Field names follow Hugging Face's ``rope_scaling``."""

    kind: str = "none"
    factor: float = 1.0
    original_max_position: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    divisors: tuple[float, ...] = ()  # divisors: of each frequency [head_dim / 2]; how a GGUF file stores llama3


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What differs from layer to layer: ``window`` 0 attends to everything."""

    window: int
    rope_theta: float
    rope_scaling: RopeScaling


@dataclass(frozen=True, slots=True)
class Architecture:
    family: str  # llama, qwen2, qwen3, gemma3
    vocab_size: int  # rows of the embedding table: the logits' width
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int  # positions the model was made for, scaling included
    layers: tuple[LayerKind, ...]
    activation: str = "silu"  # silu or gelu_tanh
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    qkv_bias: bool = False
    output_bias: bool = False  # on the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before rope
    sandwich_norms: bool = False  # Gemma: norms after attention and after the MLP as well as before
    embedding_scale: float = 1.0  # Gemma: sqrt(hidden_size)
    tied_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5


Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's tensors by role, as read. Norm vectors are the final multipliers (Gemma's +1 already added); q and k
    rows are in half-split rope order (a Llama GGUF's interleaving already undone)."""

    input_norm: Vector
    q: AnyMatrix
    k: AnyMatrix
    v: AnyMatrix
    o: AnyMatrix
    mlp_norm: Vector
    gate: AnyMatrix
    up: AnyMatrix
    down: AnyMatrix
    q_bias: Vector | None = None
    k_bias: Vector | None = None
    v_bias: Vector | None = None
    o_bias: Vector | None = None
    gate_bias: Vector | None = None
    up_bias: Vector | None = None
    down_bias: Vector | None = None
    q_norm: Vector | None = None
    k_norm: Vector | None = None
    post_attention_norm: Vector | None = None
    post_mlp_norm: Vector | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """``output`` is None when the embedding table is also the output matrix. ``layers`` may be read lazily."""

    embedding: AnyMatrix
    layers: Sequence[LayerWeights]
    final_norm: Vector
    output: AnyMatrix | None
