"""The native backend: a model is recorded once with symbolic tensors, and C++ replays the record each step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway import _native
from headway.ops.contract import Float32, Handle, KVLayout, SamplerOutput, SamplingBatch, StepInput, StepLimits
from headway.ops.weights import DenseMatrix, GroupQuantized, LinearWeight, Matrix


@dataclass(frozen=True, slots=True)
class SymbolicTensor:
    """Columns ``offset .. offset + width`` of a buffer; its rows are a step's tokens, or those that need logits."""

    buffer: int
    offset: int
    width: int
    logit_rows: bool = False


@dataclass(frozen=True, slots=True)
class NativeTable:
    packed: Any
    width: int


@dataclass(frozen=True, slots=True)
class NativeLinear:
    parts: list[Any]
    bias: Any
    num_outputs: int


class NativeBackend:
    """Owns the thread team and the packed weights. ``isa`` is auto, avx512, avx2 or portable."""

    name = "native"

    def __init__(self, threads: int, isa: str = "auto") -> None:
        self.isa = _native.kernel_name(isa)
        self.threads = threads
        self._pool = _native.ThreadPool(threads)
        self._tables: list[tuple[Matrix, Any]] = []  # a linear weight that is one of these shares its memory
        self._weight_bytes = 0

    def load_linear(self, weight: LinearWeight) -> NativeLinear:
        bias = None if weight.bias is None else self.load_vector(weight.bias)
        return NativeLinear([self._pack(part) for part in weight.parts], bias, weight.num_outputs)

    def load_table(self, table: Matrix) -> NativeTable:
        packed = self._pack(table)
        self._tables.append((table, packed))
        return NativeTable(packed, table.shape[1])

    def load_vector(self, values: Float32) -> Any:
        vector = _native.copy_floats(np.ascontiguousarray(values, np.float32))
        self._weight_bytes += vector.nbytes
        return vector

    def load_rope(self, table: Float32) -> Any:
        return self.load_vector(table)

    def new_kv_cache(self, layout: KVLayout) -> Any:
        return _native.KVCacheLayer(
            layout.num_kv_heads, layout.head_dim, layout.num_blocks, layout.block_size, layout.dtype == "bf16"
        )

    def compile(self, forward: Callable[[Any, Any], Any], limits: StepLimits) -> "NativeProgram":
        self._tables.clear()  # every weight is loaded by now: let the sources go
        return NativeProgram(self._pool, self.isa, forward, limits)

    def sample(self, logits: Float32, batch: SamplingBatch) -> SamplerOutput:
        m, vocab_size = logits.shape
        width = min(max(int(batch.num_logprobs.max(initial=0)), 0), vocab_size)
        output = SamplerOutput(
            np.empty(m, np.int32),
            np.zeros(m, np.float32),
            np.full((m, width), -1, np.int32),
            np.full((m, width), -1, np.float32),
        )
        _native.sample(
            logits, batch, self._pool, output.token_ids, output.logprobs, output.top_ids, output.top_logprobs
        )
        return output

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def _pack(self, matrix: Matrix) -> Any:
        for table, packed in self._tables:
            if table is matrix:
                return packed
        packed = pack(matrix)
        self._weight_bytes += packed.nbytes
        return packed


def pack(matrix: Matrix) -> Any:
    """Repacks one matrix into the order the kernels read (``native/types.hpp``)."""
    if isinstance(matrix, GroupQuantized):
        minimum = None if matrix.minimum is None else np.ascontiguousarray(matrix.minimum)
        return _native.pack_quantized(
            np.ascontiguousarray(matrix.q), np.ascontiguousarray(matrix.scale), minimum, matrix.bits, matrix.zero
        )
    assert isinstance(matrix, DenseMatrix)
    return _native.pack_dense(np.ascontiguousarray(matrix.data), matrix.format_name)


class NativeProgram:
    """A recorded model. ``run`` is one native call with the GIL released."""

    def __init__(self, pool: Any, isa: str, forward: Callable[[Any, Any], Any], limits: StepLimits) -> None:
        recorder = Recorder()
        logits = forward(recorder, recorder.step)
        self._native = _native.Program(pool, isa, limits.max_rows, limits.max_logit_rows)
        self._logits = recorder.emit(self._native, logits)

    def run(self, step: StepInput) -> Float32:
        self._native.run(step.token_ids, step.positions, step.row_starts, step.block_tables, step.logit_rows)
        view: Float32 = self._native.view(self._logits, len(step.logit_rows))
        return view

    @property
    def workspace_bytes(self) -> int:
        size: int = self._native.workspace_bytes
        return size


@dataclass(frozen=True, slots=True)
class _Recorded:
    inputs: tuple[SymbolicTensor, ...]
    output: SymbolicTensor
    call: Callable[[Any, tuple[SymbolicTensor, ...], SymbolicTensor], None]


class Recorder:
    """``Ops`` over symbolic tensors. Each op writes a buffer of its own; ``emit`` lets them share memory by lifetime."""

    def __init__(self) -> None:
        self.step = object()  # the step's own arrays are implicit in a program
        self._recorded: list[_Recorded] = []

    def embed(self, step: Any, table: NativeTable, scale: float) -> SymbolicTensor:
        return self._record((), table.width, lambda p, _, out: p.embed(table.packed, scale, out))

    def rms_norm(self, x: SymbolicTensor, weight: Handle, eps: float) -> SymbolicTensor:
        return self._record((x,), x.width, lambda p, i, out: p.rms_norm(i[0], weight, eps, out))

    def linear(self, x: SymbolicTensor, weight: NativeLinear) -> SymbolicTensor:
        parts, bias = weight.parts, weight.bias
        return self._record((x,), weight.num_outputs, lambda p, i, out: p.linear(i[0], parts, bias, out))

    def columns(self, x: SymbolicTensor, start: int, width: int) -> SymbolicTensor:
        return SymbolicTensor(x.buffer, x.offset + start, width, x.logit_rows)

    def rope_and_store(
        self, q: SymbolicTensor, k: SymbolicTensor, v: SymbolicTensor, step: Any, rope: Handle, kv: Handle
    ) -> SymbolicTensor:
        return self._record((q, k, v), q.width, lambda p, i, out: p.rope_and_store(i[0], i[1], i[2], rope, kv, out))

    def attention(self, q: SymbolicTensor, step: Any, kv: Handle, scale: float, window: int) -> SymbolicTensor:
        return self._record((q,), q.width, lambda p, i, out: p.attention(i[0], kv, scale, window, out))

    def gated_activation(self, gate_up: SymbolicTensor, kind: str) -> SymbolicTensor:
        return self._record((gate_up,), gate_up.width // 2, lambda p, i, out: p.gated_activation(i[0], kind, out))

    def add(self, x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
        return self._record((x, y), x.width, lambda p, i, out: p.add(i[0], i[1], out))

    def take_logit_rows(self, x: SymbolicTensor, step: Any) -> SymbolicTensor:
        return self._record((x,), x.width, lambda p, i, out: p.take_logit_rows(i[0], out), logit_rows=True)

    def emit(self, program: Any, result: SymbolicTensor) -> int:
        """Hands the ops to ``program``, with memory assigned so that it is used again once its last reader has run."""
        last_use = {t.buffer: i for i, op in enumerate(self._recorded) for t in (*op.inputs, op.output)}
        last_use[result.buffer] = len(self._recorded)
        buffers: dict[int, int] = {}
        free: dict[tuple[int, bool], list[int]] = {}
        for i, op in enumerate(self._recorded):
            size = (op.output.width, op.output.logit_rows)
            spare = free.setdefault(size, [])
            buffers[op.output.buffer] = spare.pop() if spare else program.add_buffer(*size)
            op.call(program, tuple(_placed(t, buffers) for t in op.inputs), _placed(op.output, buffers))
            for tensor in {t.buffer: t for t in op.inputs}.values():
                if last_use[tensor.buffer] == i:
                    whole = self._recorded[tensor.buffer].output
                    free.setdefault((whole.width, whole.logit_rows), []).append(buffers[tensor.buffer])
        return buffers[result.buffer]

    def _record(
        self, inputs: tuple[SymbolicTensor, ...], width: int, call: Any, logit_rows: bool | None = None
    ) -> SymbolicTensor:
        if logit_rows is None:
            logit_rows = any(t.logit_rows for t in inputs)
        output = SymbolicTensor(len(self._recorded), 0, width, logit_rows)
        self._recorded.append(_Recorded(inputs, output, call))
        return output


def _placed(tensor: SymbolicTensor, buffers: dict[int, int]) -> SymbolicTensor:
    return SymbolicTensor(buffers[tensor.buffer], tensor.offset, tensor.width, tensor.logit_rows)
