"""The op contract: what a backend must provide. Shapes: n rows (tokens) in a step, r requests, m rows that need logits.

A model is one Python function from ``StepInput`` to logits, written with these ops (``model/decoder.py``). A backend
turns it into a ``StepProgram`` once: the reference backend runs the function each time; the native backend records it
with symbolic tensors and replays the record in one native call. So a model function may not look at values, only
combine tensors, and must do the same ops whatever the shapes are.

Law 1: an output row depends on its own input row (and, in attention, on its own sequence), bit for bit. No op may let
the number of rows, their order, the split into steps or the number of threads change a row's result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.ops.weights import AnyMatrix, LinearWeight, Matrix

Tensor = Any  # opaque to models: an array in the reference, a symbolic buffer in the native backend
Handle = Any  # a weight, table or KV layer as the backend keeps it

Bytes = NDArray[np.uint8]
Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepInput:
    """A ragged batch, flattened: request i owns rows ``row_starts[i]`` to ``row_starts[i + 1] - 1``, one position each.

        request      |---- 0 ----|-1-|------ 2 ------|       n rows, r = 3 requests
        positions     4 5 6 7 8 9 31  0 1 2 3 4 5 6 7
        row_starts    0           6   7               15

    The keys and values of position p of request i live in block ``block_tables[i, p // block_size]``, at offset
    ``p % block_size``. Unused table entries are -1.
    """

    token_ids: Int32  # [n]
    positions: Int32  # [n], absolute, 0-based
    row_starts: Int32  # [r + 1]
    block_tables: Int32  # [r, blocks], C-contiguous
    logit_rows: Int32  # [m], ascending row numbers whose logits are wanted


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One attention layer's share of the pool; ``dtype`` is bf16 or f32."""

    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    dtype: str

    @property
    def bytes_per_block(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim * self.block_size * {"bf16": 2, "f32": 4}[self.dtype]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a program must have room for: rows in a step, and rows with logits."""

    max_rows: int
    max_logit_rows: int


class Ops(Protocol):
    """The operations. Every tensor is float32 with rows first unless said otherwise."""

    def embed(self, step: Any, table: Handle, scale: float) -> Tensor:
        """x[n, h] = scale * table[token_ids[n]], for a table [vocabulary, h] of any format."""

    def rms_norm(self, x: Tensor, weight: Handle, eps: float) -> Tensor:
        """Each run of d = len(weight) values is normalised by itself: y = x / sqrt(mean(x^2) + eps) * weight.

        With d = width it is the layer norm; with d = head_dim, the per-head norm of Qwen3 and Gemma 3.
        """

    def linear(self, x: Tensor, weight: Handle) -> Tensor:
        """y[n, out] = x @ W^T + bias. Integer weights may quantise each row of x by itself (int8, groups along k)."""

    def columns(self, x: Tensor, start: int, width: int) -> Tensor:
        """A view: x[:, start : start + width]."""

    def rope_and_store(self, q: Tensor, k: Tensor, v: Tensor, step: Any, rope: Handle, kv: Handle) -> Tensor:
        """Rotates q and k by position (half-split pairs: i with i + d/2) and writes k, v into the step's blocks.

        q [n, heads * d], k and v [n, kv_heads * d]; ``rope`` is a table [max_context, d]: d/2 cosines, then d/2 sines.
        Returns the rotated q.
        """

    def attention(self, q: Tensor, step: Any, kv: Handle, scale: float, window: int) -> Tensor:
        """Causal, grouped-query attention of each row over its own sequence: head i reads kv head i // group.

        softmax(scale * q k^T) v over positions max(0, p - window + 1) .. p; window 0 means all. Returns [n, heads * d].
        """

    def gated_activation(self, gate_up: Tensor, kind: str) -> Tensor:
        """act(gate) * up, for gate_up [n, 2f] = gate | up; kind "silu" or "gelu_tanh". Returns [n, f]."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, same shape."""

    def take_logit_rows(self, x: Tensor, step: Any) -> Tensor:
        """x[logit_rows], [m, h]."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Per-row sampling parameters, m rows, neutral values meaning off (see ``SamplingParams``).

    Ragged lists are (starts [m + 1], values): row i owns values[starts[i] : starts[i + 1]].
    The noise of a row is a function of (seed, position) only.
    """

    temperature: Float32  # [m]; 0 is argmax
    top_k: Int32  # [m]; <= 0 off
    top_p: Float32  # [m]
    min_p: Float32  # [m]
    presence_penalty: Float32  # [m]
    frequency_penalty: Float32  # [m]
    repetition_penalty: Float32  # [m]
    seeds: NDArray[np.uint64]  # [m]
    positions: Int32  # [m]: of the token to be sampled
    num_logprobs: Int32  # [m]; -1 none
    bias_starts: Int32
    bias_ids: Int32
    bias_values: Float32
    banned_starts: Int32  # ids that may not be chosen: EOS and stops before min_tokens, ids without text
    banned_ids: Int32
    prompt_starts: Int32  # distinct ids of the prompt, ascending (the repetition penalty counts them)
    prompt_ids: Int32
    output_starts: Int32  # distinct ids of the output, ascending, with how often each occurred
    output_ids: Int32
    output_counts: Int32


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """``token_ids`` [m], -1 where a row could not be sampled (no finite logit left); ``logprobs`` [m] of the chosen.

    ``top_ids`` and ``top_logprobs`` [m, width], width = max(num_logprobs), padded with -1: most likely first, ties to
    the lower id. All logprobs are natural, of the unmodified logits, and floored at -9999.
    """

    token_ids: Int32
    logprobs: Float32
    top_ids: Int32
    top_logprobs: Float32


class StepProgram(Protocol):
    @property
    def workspace_bytes(self) -> int:
        """Memory held for intermediate results."""

    def run(self, step: StepInput) -> Float32:
        """Logits [m, vocabulary]. The array may be overwritten by the next run."""


class Backend(Protocol):
    isa: str  # the kernels in use: "avx512", "reference"
    threads: int
    packed_layout: str  # names the form of its packed matrices, which files of them are known by; empty: it packs none

    def pack(self, matrix: Matrix, is_table: bool = False) -> Any:
        """A matrix in that form. ``is_table``: for ``load_table``, and maybe ``load_linear`` too."""

    def load_linear(self, weight: LinearWeight) -> Handle:
        """Repacks once; the source arrays are not needed afterwards."""

    def load_table(self, table: AnyMatrix) -> Handle:
        """An embedding table, kept in its own format (shares memory with a linear weight where the backend can)."""

    def load_vector(self, values: Float32) -> Handle: ...

    def load_rope(self, table: Float32) -> Handle: ...

    def new_kv_cache(self, layout: KVLayout, num_layers: int) -> Sequence[Handle]:
        """An empty pool, as one handle for each layer."""

    def kv_block(self, kv_cache: Sequence[Handle], block_id: int) -> list[Bytes]:
        """The memory of one block, all layers of it: 1-dimensional, writable, in the same order each time."""

    def compile(self, forward: Callable[[Ops, Any], Tensor], limits: StepLimits) -> StepProgram: ...

    def sample(self, logits: Float32, batch: SamplingBatch) -> SamplerOutput: ...

    def weight_bytes(self) -> int:
        """Memory of everything loaded so far."""
