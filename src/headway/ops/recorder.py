"""Recording a model with symbolic tensors: the list of operations that native code replays, and its fused form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.ops.contract import Handle


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
    role: str = "linear"


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One operation: a method of ``_native.Program``, with what it reads, what it writes and its constants by name.

    ``label`` says what it is for: the method, or the role of a linear op's weights.
    """

    method: str
    label: str
    inputs: dict[str, SymbolicTensor]
    output: SymbolicTensor
    constants: dict[str, Any]


class Recorder:
    """``contract.Ops`` over symbolic tensors. Each op writes a buffer of its own, numbered in order."""

    def __init__(self) -> None:
        self.step = object()  # the step's own arrays are implicit in a program
        self.ops: list[RecordedOp] = []

    def embed(self, step: Any, table: NativeTable, scale: float) -> SymbolicTensor:
        return self._record("embed", {}, table.width, table=table.packed, scale=scale)

    def rms_norm(self, x: SymbolicTensor, weight: Handle, eps: float) -> SymbolicTensor:
        return self._record("rms_norm", {"x": x}, x.width, weight=weight, eps=eps)

    def linear(self, x: SymbolicTensor, weight: NativeLinear) -> SymbolicTensor:
        return self._record("linear", {"x": x}, weight.num_outputs, weight.role, parts=weight.parts, bias=weight.bias)

    def columns(self, x: SymbolicTensor, start: int, width: int) -> SymbolicTensor:
        return SymbolicTensor(x.buffer, x.offset + start, width, x.logit_rows)

    def rope_and_store(
        self, q: SymbolicTensor, k: SymbolicTensor, v: SymbolicTensor, step: Any, rope: Handle, kv: Handle
    ) -> SymbolicTensor:
        return self._record("rope_and_store", {"q": q, "k": k, "v": v}, q.width, table=rope, kv=kv)

    def attention(self, q: SymbolicTensor, step: Any, kv: Handle, scale: float, window: int) -> SymbolicTensor:
        return self._record("attention", {"q": q}, q.width, kv=kv, scale=scale, window=window)

    def gated_activation(self, gate_up: SymbolicTensor, kind: str) -> SymbolicTensor:
        return self._record("gated_activation", {"gate_up": gate_up}, gate_up.width // 2, kind=kind)

    def add(self, x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
        return self._record("add", {"x": x, "y": y}, x.width)

    def take_logit_rows(self, x: SymbolicTensor, step: Any) -> SymbolicTensor:
        return self._record("take_logit_rows", {"x": x}, x.width, to_logit_rows=True)

    def _record(
        self,
        method: str,
        inputs: dict[str, SymbolicTensor],
        width: int,
        label: str = "",
        to_logit_rows: bool = False,
        **constants: Any,
    ) -> SymbolicTensor:
        logit_rows = to_logit_rows or any(t.logit_rows for t in inputs.values())
        output = SymbolicTensor(len(self.ops), 0, width, logit_rows)
        self.ops.append(RecordedOp(method, label or method, inputs, output, constants))
        return output


def fuse(ops: Sequence[RecordedOp], result: SymbolicTensor) -> list[RecordedOp]:
    """The same results, bit for bit, with fewer passes over memory and fewer meetings of the threads.

    A norm that only one linear op reads is computed as that op takes in its rows; a gated activation or an addition of
    a linear op's output is done as the output is written.
    """
    num_readers = _num_readers(ops, result)
    made_by = {op.output.buffer: op for op in ops}
    gone: set[int] = set()  # buffers that are never written any more
    fused: list[RecordedOp] = []
    for op in ops:
        if op.method == "linear":
            op = _with_norm(op, made_by, num_readers, gone)
        elif op.method == "gated_activation":
            op = _with_gate(op, made_by, num_readers, gone)
        elif op.method == "add":
            op = _with_residual(op, made_by, num_readers, gone)
        made_by[op.output.buffer] = op
        fused.append(op)
    return [op for op in fused if op.output.buffer not in gone]


def _num_readers(ops: Iterable[RecordedOp], result: SymbolicTensor) -> dict[int, int]:
    count = {result.buffer: 1}
    for op in ops:
        for tensor in op.inputs.values():
            count[tensor.buffer] = count.get(tensor.buffer, 0) + 1
    return count


def _with_norm(
    op: RecordedOp, made_by: dict[int, RecordedOp], num_readers: dict[int, int], gone: set[int]
) -> RecordedOp:
    before = made_by[op.inputs["x"].buffer]
    is_only_reader = before.output == op.inputs["x"] and num_readers[before.output.buffer] == 1
    if before.method != "rms_norm" or not is_only_reader:
        return op
    if before.constants["weight"].nbytes != 4 * before.output.width:  # of each head, not of the row
        return op
    gone.add(before.output.buffer)
    [x] = before.inputs.values()
    return replace(op, inputs={"x": x}, constants=op.constants | before.constants)


def _with_gate(
    op: RecordedOp, made_by: dict[int, RecordedOp], num_readers: dict[int, int], gone: set[int]
) -> RecordedOp:
    """``gated_activation(linear(...))`` of two matrices, gate and up."""
    [gate_up] = op.inputs.values()
    before = made_by[gate_up.buffer]
    is_only_reader = before.output == gate_up and num_readers[gate_up.buffer] == 1
    if before.method != "linear" or not is_only_reader or len(before.constants["parts"]) != 2:
        return op
    gone.add(gate_up.buffer)
    return replace(before, constants=before.constants | op.constants, output=op.output)


def _with_residual(
    op: RecordedOp, made_by: dict[int, RecordedOp], num_readers: dict[int, int], gone: set[int]
) -> RecordedOp:
    """``add(x, linear(...))`` in either order becomes a linear op in the addition's place."""
    x, y = op.inputs.values()
    for residual, summand in ((x, y), (y, x)):
        before = made_by[summand.buffer]
        if before.method == "linear" and before.output == summand and num_readers[summand.buffer] == 1:
            gone.add(summand.buffer)
            return replace(before, inputs=before.inputs | {"residual": residual}, output=op.output)
    return op


def emit(ops: Sequence[RecordedOp], result: SymbolicTensor, program: Any) -> int:
    """Hands the ops to ``program``, with memory assigned so that it is used again once its last reader has run.

    Returns the program's number of the buffer that holds ``result``.
    """
    last_use = {t.buffer: i for i, op in enumerate(ops) for t in (*op.inputs.values(), op.output)}
    last_use[result.buffer] = len(ops)
    buffers: dict[int, int] = {}
    free: dict[tuple[int, bool], list[int]] = {}
    sizes = {op.output.buffer: (op.output.width, op.output.logit_rows) for op in ops}
    for i, op in enumerate(ops):
        spare = free.setdefault(sizes[op.output.buffer], [])
        buffers[op.output.buffer] = spare.pop() if spare else program.add_buffer(*sizes[op.output.buffer])
        inputs = {name: replace(t, buffer=buffers[t.buffer]) for name, t in op.inputs.items()}
        getattr(program, op.method)(**inputs, **op.constants, out=replace(op.output, buffer=buffers[op.output.buffer]))
        for buffer in dict.fromkeys(t.buffer for t in op.inputs.values()):
            if last_use[buffer] == i:
                free.setdefault(sizes[buffer], []).append(buffers[buffer])
    return buffers[result.buffer]
