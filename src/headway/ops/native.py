"""The native backend: a model is recorded once with symbolic tensors, and C++ replays the record each step."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway import _native
from headway.ops.contract import Bytes, Float32, KVLayout, SamplerOutput, SamplingBatch, StepInput, StepLimits
from headway.ops.profile import OpProfile, StepTotals, profile_of
from headway.ops.recorder import NativeLinear, NativeTable, Recorder, emit, fuse
from headway.ops.weights import AnyMatrix, DenseMatrix, GroupQuantized, LinearWeight, Matrix, PackedMatrix

CALIBRATION_BYTES = 1 << 30  # no cache holds it


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured limits of the team's threads together, at this moment.

    ``read_bytes_per_s`` is from memory. ``footprint_bytes_per_s`` is over a buffer of the size of all weights, which a
    cache may hold: the limit of a step that reads them once.
    """

    read_bytes_per_s: float
    footprint_bytes_per_s: float
    int8_ops_per_s: float


class NativeBackend:
    """Owns the thread team and the packed weights. ``isa`` is auto, amx, avx512, avx2 or portable.

    ``fused`` False runs every recorded operation by itself: slower, and the same bits. ``cpus`` holds a processor for
    each thread to be pinned to; the first, of the thread that calls, is only left free. ``wide_weights_bytes`` is
    memory that may go to a second form of 4-bit weights, twice as large, which larger batches are computed from
    sooner; again with the same bits. Only the kernels of ``amx`` have it.
    """

    def __init__(
        self,
        threads: int,
        isa: str = "auto",
        fused: bool = True,
        cpus: Sequence[int] = (),
        wide_weights_bytes: int = 0,
    ) -> None:
        self.isa = _native.kernel_name(isa)
        self._fixed_point = self.isa == "amx"  # whose kernels read integer weights in that form
        form = "fixed point, " if self._fixed_point else ""
        self.packed_layout = f"native {_native.PACKED_LAYOUT}, {form}{sys.byteorder}-endian"
        self.threads = threads
        self._fused = fused
        self._pool = _native.ThreadPool(threads, cpus)
        self._tables: list[tuple[AnyMatrix, Any]] = []  # a linear weight that is one of these shares its memory
        self._weight_bytes = 0
        self._wide_weights_bytes = wide_weights_bytes
        self._linear: list[Any] = []  # weights that may be widened

    def load_linear(self, weight: LinearWeight) -> NativeLinear:
        bias = None if weight.bias is None else self.load_vector(weight.bias)
        parts = [self._packed(part) for part in weight.parts]
        self._linear += parts
        return NativeLinear(parts, bias, weight.num_outputs, weight.role)

    def load_table(self, table: AnyMatrix) -> NativeTable:
        packed = self._packed(table, is_table=True)
        self._tables.append((table, packed))
        return NativeTable(packed, table.shape[1])

    def load_vector(self, values: Float32) -> Any:
        vector = _native.copy_floats(np.ascontiguousarray(values, np.float32))
        self._weight_bytes += vector.nbytes
        return vector

    def load_rope(self, table: Float32) -> Any:
        return self.load_vector(table)

    def new_kv_cache(self, layout: KVLayout, num_layers: int) -> list[Any]:
        memory = _native.Memory(num_layers * layout.num_blocks * layout.bytes_per_block)
        shape = layout.num_kv_heads, layout.head_dim, layout.num_blocks, layout.block_size, layout.dtype == "bf16"
        return [_native.KVCacheLayer(memory, layer, num_layers, *shape) for layer in range(num_layers)]

    def kv_block(self, kv_cache: Sequence[Any], block_id: int) -> list[Bytes]:
        return [kv_cache[0].block(block_id)]

    def compile(self, forward: Callable[[Any, Any], Any], limits: StepLimits) -> "NativeProgram":
        self._tables.clear()  # every weight is loaded by now: let the sources go
        self._widen()
        return NativeProgram(self._pool, self.isa, forward, limits, self._fused)

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
            logits,
            batch,
            self._pool,
            self.isa,
            output.token_ids,
            output.logprobs,
            output.top_ids,
            output.top_logprobs,
        )
        return output

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def calibrate(self) -> "Calibration":
        """A measurement of about a second, with a GiB of memory; the machine should do nothing else meanwhile."""
        return Calibration(
            _native.read_bandwidth(self._pool, CALIBRATION_BYTES),
            _native.read_bandwidth(self._pool, self._weight_bytes),
            _native.int8_rate(self._pool, self.isa),
        )

    def pack(self, matrix: Matrix, is_table: bool = False) -> Any:
        """One matrix in the order the kernels read (``native/types.hpp``); rows of a table can be looked up exactly."""
        return pack(matrix, self._fixed_point, is_table)

    def _packed(self, matrix: AnyMatrix, is_table: bool = False) -> Any:
        for table, packed in self._tables:
            if table is matrix:
                return packed
        packed = matrix.handle if isinstance(matrix, PackedMatrix) else self.pack(matrix, is_table)
        self._weight_bytes += packed.nbytes
        return packed

    def _widen(self) -> None:
        """Makes the wide form of as many weights as are within the bounds, in one run of memory."""
        chosen, size = [], 0
        for weight in dict.fromkeys(self._linear):
            needed = weight.wide_bytes(self.isa)
            if 0 < needed <= self._wide_weights_bytes - size:
                chosen.append((weight, size))
                size += needed
        memory = _native.Memory(size)
        for weight, offset in chosen:
            weight.widen(self.isa, memory, offset)
        self._weight_bytes += size
        self._linear.clear()


def pack(matrix: Matrix, fixed_point: bool = False, is_table: bool = False) -> Any:
    """``fixed_point`` where the shape allows it: inputs a multiple of 64."""
    if isinstance(matrix, GroupQuantized):
        minimum = None if matrix.minimum is None else np.ascontiguousarray(matrix.minimum)
        return _native.pack_quantized(
            np.ascontiguousarray(matrix.q),
            np.ascontiguousarray(matrix.scale),
            minimum,
            matrix.bits,
            matrix.zero,
            fixed_point and matrix.shape[1] % 64 == 0,
            is_table,
        )
    assert isinstance(matrix, DenseMatrix)
    return _native.pack_dense(np.ascontiguousarray(matrix.data), matrix.format_name)


class NativeProgram:
    """A recorded model. ``run`` is one native call with the GIL released."""

    def __init__(
        self, pool: Any, isa: str, forward: Callable[[Any, Any], Any], limits: StepLimits, fused: bool
    ) -> None:
        recorder = Recorder()
        logits = forward(recorder, recorder.step)
        self._native = _native.Program(pool, isa, limits.max_rows, limits.max_logit_rows)
        self._ops = fuse(recorder.ops, logits) if fused else recorder.ops
        self._logits = emit(self._ops, logits, self._native)
        self._profiled: StepTotals | None = None  # None: not profiled

    def run(self, step: StepInput) -> Float32:
        self._native.run(step.token_ids, step.positions, step.row_starts, step.block_tables, step.logit_rows)
        if self._profiled is not None:
            self._profiled.add(step)
        view: Float32 = self._native.view(self._logits, len(step.logit_rows))
        return view

    @property
    def workspace_bytes(self) -> int:
        size: int = self._native.workspace_bytes
        return size

    def start_profile(self) -> None:
        """From here on every step's operations are timed, until ``stop_profile``."""
        self._profiled = StepTotals(self._ops)
        self._native.profile(True)

    def stop_profile(self) -> list[OpProfile]:
        """What was measured and computed since ``start_profile``, one value for each label, in the program's order."""
        assert self._profiled is not None, "start_profile comes first"
        profile = profile_of(self._ops, self._native.seconds(), self._profiled)
        self._profiled = None
        self._native.profile(False)
        return profile
