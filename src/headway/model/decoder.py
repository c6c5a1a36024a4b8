"""The decoder-only transformer, written once for every family in terms of ops.

    embed -> [ norm, attention, (norm), add, norm, gated MLP, (norm), add ] x layers -> norm -> logits

Families differ only in what ``Architecture`` says: norms in parentheses are Gemma's, per-head query and key norms are
Qwen3's and Gemma's, windows and rope tables go by layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.model.architecture import Architecture, LayerKind, LayerWeights, ModelWeights, Vector
from headway.model.rope import rope_table
from headway.ops.contract import Backend, Handle, Ops, Tensor
from headway.ops.weights import AnyMatrix, LinearWeight

OnLayer = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer as the backend keeps it. Norms a family lacks are None."""

    input_norm: Handle
    qkv: Handle  # queries, keys and values in one operand: one read of the input
    q_norm: Handle | None
    k_norm: Handle | None
    rope: Handle
    kv: Handle
    window: int
    o: Handle
    post_attention_norm: Handle | None
    mlp_norm: Handle
    gate_up: Handle
    down: Handle
    post_mlp_norm: Handle | None


class Decoder:
    """Owns a model's weights as handles of one backend, and the function from a step's tokens to its logits.

    Reads ``weights`` a layer at a time, so that no more than one layer exists twice; ``on_layer(done, total)`` is told
    after each. ``kv_layers`` holds one KV cache a layer; ``max_context`` bounds the positions (the rope tables' rows).
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: ModelWeights,
        backend: Backend,
        kv_layers: Sequence[Handle],
        max_context: int,
        on_layer: OnLayer | None = None,
    ) -> None:
        self.architecture = architecture
        self._backend = backend
        self._embedding = backend.load_table(weights.embedding)
        self._output = backend.load_linear(LinearWeight((weights.output or weights.embedding,), role="head"))
        self._final_norm = backend.load_vector(weights.final_norm)
        ropes = self._load_ropes(max_context)
        self._layers: list[_Layer] = []
        for i, kind in enumerate(architecture.layers):
            self._layers.append(self._load_layer(weights.layers[i], kind, ropes[_rope_key(kind)], kv_layers[i]))
            if on_layer is not None:
                on_layer(i + 1, len(architecture.layers))

    def forward(self, ops: Ops, step: Any) -> Tensor:
        """Logits [m, vocabulary] of the step's ``logit_rows``. Writes the step's keys and values into the KV caches."""
        x = ops.embed(step, self._embedding, self.architecture.embedding_scale)
        for layer in self._layers:
            x = ops.add(x, self._attention(ops, step, layer, x))
            x = ops.add(x, self._mlp(ops, layer, x))
        x = ops.take_logit_rows(x, step)
        return ops.linear(self._norm(ops, x, self._final_norm), self._output)

    def _attention(self, ops: Ops, step: Any, layer: _Layer, x: Tensor) -> Tensor:
        arch = self.architecture
        q_width, kv_width = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
        qkv = ops.linear(self._norm(ops, x, layer.input_norm), layer.qkv)
        q = self._norm(ops, ops.columns(qkv, 0, q_width), layer.q_norm)
        k = self._norm(ops, ops.columns(qkv, q_width, kv_width), layer.k_norm)
        v = ops.columns(qkv, q_width + kv_width, kv_width)
        q = ops.rope_and_store(q, k, v, step, layer.rope, layer.kv)
        y = ops.attention(q, step, layer.kv, arch.scale, layer.window)
        return self._norm(ops, ops.linear(y, layer.o), layer.post_attention_norm)

    def _mlp(self, ops: Ops, layer: _Layer, x: Tensor) -> Tensor:
        gate_up = ops.linear(self._norm(ops, x, layer.mlp_norm), layer.gate_up)
        y = ops.linear(ops.gated_activation(gate_up, self.architecture.activation), layer.down)
        return self._norm(ops, y, layer.post_mlp_norm)

    def _norm(self, ops: Ops, x: Tensor, weight: Handle | None) -> Tensor:
        """The norm, where the family has one."""
        return x if weight is None else ops.rms_norm(x, weight, self.architecture.norm_eps)

    def _load_ropes(self, max_context: int) -> dict[Any, Handle]:
        """One table for each distinct rotation, whatever the windows."""
        kinds = {_rope_key(kind): kind for kind in self.architecture.layers}
        tables = {key: rope_table(kind, self.architecture.head_dim, max_context) for key, kind in kinds.items()}
        return {key: self._backend.load_rope(table) for key, table in tables.items()}

    def _load_layer(self, w: LayerWeights, kind: LayerKind, rope: Handle, kv: Handle) -> _Layer:
        backend = self._backend
        return _Layer(
            input_norm=backend.load_vector(w.input_norm),
            qkv=backend.load_linear(_stack("qkv", (w.q, w.k, w.v), (w.q_bias, w.k_bias, w.v_bias))),
            q_norm=self._load_optional(w.q_norm),
            k_norm=self._load_optional(w.k_norm),
            rope=rope,
            kv=kv,
            window=kind.window,
            o=backend.load_linear(_stack("o", (w.o,), (w.o_bias,))),
            post_attention_norm=self._load_optional(w.post_attention_norm),
            mlp_norm=backend.load_vector(w.mlp_norm),
            gate_up=backend.load_linear(_stack("gate_up", (w.gate, w.up), (w.gate_bias, w.up_bias))),
            down=backend.load_linear(_stack("down", (w.down,), (w.down_bias,))),
            post_mlp_norm=self._load_optional(w.post_mlp_norm),
        )

    def _load_optional(self, values: Vector | None) -> Handle | None:
        return None if values is None else self._backend.load_vector(values)


def _rope_key(kind: LayerKind) -> tuple[Any, ...]:
    return kind.rope_theta, kind.rope_scaling


def _stack(role: str, parts: tuple[AnyMatrix, ...], biases: tuple[Vector | None, ...]) -> LinearWeight:
    """Matrices of one input as one operand; a missing bias among present ones is zero."""
    if all(bias is None for bias in biases):
        return LinearWeight(parts, role=role)
    pairs = zip(parts, biases, strict=True)
    filled = [np.zeros(part.shape[0], np.float32) if bias is None else bias for part, bias in pairs]
    return LinearWeight(parts, np.concatenate(filled), role)
