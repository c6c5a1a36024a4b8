"""The reference backend: the op contract in NumPy float32, written to be read.

First the mathematics, as plain functions of ONE row. ``ReferenceOps`` maps them over the rows of a step, one by one, so
that law 1 holds by construction: no arithmetic ever sees two rows. (``linear`` alone takes all rows at once, and sums
each output by itself.) It is for small models and for checking faster backends against: weights are dequantised to
float32 and nothing else is rounded, except KV where the layout says bf16.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headway.ops.contract import (
    Bytes,
    Float32,
    Handle,
    Int32,
    KVLayout,
    Ops,
    SamplerOutput,
    SamplingBatch,
    StepInput,
    StepLimits,
    Tensor,
)
from headway.ops.sampling import sample_reference
from headway.ops.weights import AnyMatrix, LinearWeight, Matrix, PackedMatrix

# -- the mathematics: one row ------------------------------------------------------------------------------------------


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    x = x.reshape(-1, len(weight))  # [runs, d]
    mean_square = np.mean(x * x, axis=1, keepdims=True)  # [runs, 1]
    y = x / np.sqrt(mean_square + np.float32(eps)) * weight  # [runs, d]
    return y.reshape(-1)  # [runs * d]


def rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """Rotary embedding at one position, half-split pairs (Su et al., "RoFormer", 2021)."""
    x = x.reshape(-1, 2, len(cos))  # [heads, 2, d/2]
    x1, x2 = x[:, 0], x[:, 1]  # [heads, d/2] each
    return np.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=1).reshape(-1)  # [heads * d]


def attend(q: Float32, keys: Float32, values: Float32, scale: float) -> Float32:
    """One query row over the whole of ``keys`` and ``values`` [length, kv_heads, d]."""
    _, kv_heads, d = keys.shape
    q = q.reshape(kv_heads, -1, d)  # [kv_heads, group, d]
    scores = q @ keys.transpose(1, 2, 0) * np.float32(scale)  # [kv_heads, group, length]
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))  # [kv_heads, group, length]
    weights /= weights.sum(axis=2, keepdims=True)  # [kv_heads, group, length]
    return (weights @ values.transpose(1, 0, 2)).reshape(-1)  # [heads * d]


def silu(x: Float32) -> Float32:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        return x / (1 + np.exp(-x))


def gelu_tanh(x: Float32) -> Float32:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    with np.errstate(over="ignore"):  # tanh of an infinity is the right limit
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {"silu": silu, "gelu_tanh": gelu_tanh}


def gated(gate_up: Float32, kind: str) -> Float32:
    gate, up = np.split(gate_up, 2)  # [f] each
    return ACTIVATIONS[kind](gate) * up  # [f]


def round_to_bf16(x: Float32) -> Float32:
    """The nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000
    return np.where(np.isnan(x), x, rounded.view(np.float32))


# -- the backend: rows, weights, blocks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedLinear:
    weight: Float32  # [out, in]
    bias: Float32 | None  # [out]


@dataclass(frozen=True, slots=True)
class KVCache:
    """``keys`` and ``values`` [num_blocks, block_size, kv_heads, d], float32; bf16 layouts hold rounded values."""

    layout: KVLayout
    keys: Float32
    values: Float32

    def write(self, block_id: int, offset: int, key: Float32, value: Float32) -> None:
        _check_owned(block_id)
        shape = (self.layout.num_kv_heads, self.layout.head_dim)
        rounded = round_to_bf16 if self.layout.dtype == "bf16" else np.asarray
        self.keys[block_id, offset] = rounded(key).reshape(shape)
        self.values[block_id, offset] = rounded(value).reshape(shape)

    def read(self, block_table: Int32, first: int, last: int) -> tuple[Float32, Float32]:
        """Keys and values of positions ``first .. last``, [length, kv_heads, d] each. Touches only their blocks."""
        size = self.layout.block_size
        blocks = block_table[first // size : last // size + 1]
        _check_owned(blocks.min())
        inside = slice(first % size, first % size + last - first + 1)
        shape = (-1, self.layout.num_kv_heads, self.layout.head_dim)
        return self.keys[blocks].reshape(shape)[inside], self.values[blocks].reshape(shape)[inside]


def _check_owned(block_id: int) -> None:
    if block_id < 0:  # NumPy would take the pool's last block
        raise IndexError("a position of this step has no KV block: its block table is too short")


def each_row(function: Callable[[Float32], Float32], x: Float32, width: int) -> Float32:
    """[n, width]: ``function`` of each row of ``x`` by itself; n may be 0."""
    y = np.empty((len(x), width), np.float32)
    for i, row in enumerate(x):
        y[i] = function(row)
    return y


class ReferenceOps:
    """``contract.Ops`` on arrays: every tensor is a float32 array with rows first."""

    def embed(self, step: StepInput, table: Float32, scale: float) -> Float32:
        return table[step.token_ids] * np.float32(scale)

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        return each_row(lambda row: rms_norm(row, weight, eps), x, x.shape[1])

    def linear(self, x: Float32, weight: LoadedLinear) -> Float32:
        y = np.einsum("nk,ok->no", x, weight.weight)  # one dot product an output, where x @ W^T would tile over rows
        return y if weight.bias is None else y + weight.bias

    def columns(self, x: Float32, start: int, width: int) -> Float32:
        return x[:, start : start + width]

    def rope_and_store(
        self, q: Float32, k: Float32, v: Float32, step: StepInput, rope: Float32, kv: KVCache
    ) -> Float32:
        rotated = np.empty_like(q)
        for i, request, position in rows(step):
            cos, sin = np.split(rope[position], 2)
            rotated[i] = rotate(q[i], cos, sin)
            block, offset = divmod(position, kv.layout.block_size)
            kv.write(step.block_tables[request, block], offset, rotate(k[i], cos, sin), v[i])
        return rotated

    def attention(self, q: Float32, step: StepInput, kv: KVCache, scale: float, window: int) -> Float32:
        y = np.empty_like(q)
        for i, request, position in rows(step):
            first = max(0, position - window + 1) if window else 0
            keys, values = kv.read(step.block_tables[request], first, position)
            y[i] = attend(q[i], keys, values, scale)
        return y

    def gated_activation(self, gate_up: Float32, kind: str) -> Float32:
        return each_row(lambda row: gated(row, kind), gate_up, gate_up.shape[1] // 2)

    def add(self, x: Float32, y: Float32) -> Float32:
        return x + y

    def take_logit_rows(self, x: Float32, step: StepInput) -> Float32:
        return x[step.logit_rows]


def rows(step: StepInput) -> list[tuple[int, int, int]]:
    """(row, request, position) of each row of a step."""
    requests = np.repeat(np.arange(len(step.row_starts) - 1), np.diff(step.row_starts))
    return [(i, int(request), int(step.positions[i])) for i, request in enumerate(requests)]


class ReferenceProgram:
    """Runs the model's function anew for each step."""

    workspace_bytes = 0

    def __init__(self, forward: Callable[[Ops, StepInput], Tensor]) -> None:
        self._forward = forward
        self._ops = ReferenceOps()

    def run(self, step: StepInput) -> Float32:
        return self._forward(self._ops, step)


class ReferenceBackend:
    """``contract.Backend`` in NumPy. Owns float32 copies of every weight it has loaded."""

    isa = "reference"
    threads = 1
    packed_layout = ""  # matrices stay as they are

    def __init__(self) -> None:
        self._weight_bytes = 0
        self._tables: list[tuple[AnyMatrix, Float32]] = []

    def pack(self, matrix: Matrix, is_table: bool = False) -> Matrix:
        return matrix

    def load_linear(self, weight: LinearWeight) -> LoadedLinear:
        for matrix, table in self._tables:
            if len(weight.parts) == 1 and weight.parts[0] is matrix:
                return LoadedLinear(table, weight.bias)
        stacked = np.concatenate([_float32(part) for part in weight.parts])
        return LoadedLinear(self._own(stacked), weight.bias)

    def load_table(self, table: AnyMatrix) -> Float32:
        loaded = self._own(_float32(table))
        self._tables.append((table, loaded))
        return loaded

    def load_vector(self, values: Float32) -> Float32:
        return self._own(values)

    def load_rope(self, table: Float32) -> Float32:
        return self._own(table)

    def new_kv_cache(self, layout: KVLayout, num_layers: int) -> list[KVCache]:
        shape = (layout.num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        return [KVCache(layout, np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in range(num_layers)]

    def kv_block(self, kv_cache: Sequence[KVCache], block_id: int) -> list[Bytes]:
        parts = [part[block_id] for layer in kv_cache for part in (layer.keys, layer.values)]
        return [part.reshape(-1).view(np.uint8) for part in parts]

    def compile(self, forward: Callable[[Ops, Handle], Tensor], limits: StepLimits) -> ReferenceProgram:
        return ReferenceProgram(forward)

    def sample(self, logits: Float32, batch: SamplingBatch) -> SamplerOutput:
        return sample_reference(logits, batch)

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def _own(self, values: Float32) -> Float32:
        owned = np.ascontiguousarray(values, np.float32)
        self._weight_bytes += owned.nbytes
        return owned


def _float32(matrix: AnyMatrix) -> Float32:
    assert not isinstance(matrix, PackedMatrix), "another backend has packed this matrix"
    return matrix.to_float32()
