"""What the operations of a program cost: seconds as measured, bytes and operations as computed from shapes.

Bytes are what an operation must read at least: weights once a step, keys and values once a step for each request, its
float32 input rows once. Operations are multiply-adds, counted as two, of products with weights and of attention.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headway.ops.contract import StepInput
from headway.ops.recorder import RecordedOp

_FLOAT_BYTES = 4
_WITHOUT_WINDOW = 1 << 30  # more positions than any context has


@dataclass(frozen=True, slots=True)
class OpProfile:
    """All operations of one label, added up over some steps. ``int8_operations`` are those with int8 operands."""

    label: str
    calls: int
    seconds: float
    bytes_read: int
    operations: int = 0
    int8_operations: int = 0


@dataclass(slots=True)
class _Attended:
    """What attention with one window looked at: (query, key) pairs of a head, and positions whose keys were read."""

    pairs: int = 0
    positions: int = 0

    def add(self, step: StepInput, window: int) -> None:
        reach = window or _WITHOUT_WINDOW
        first, last = step.positions[step.row_starts[:-1]], step.positions[step.row_starts[1:] - 1]
        self.pairs += int(np.minimum(step.positions + 1, reach).sum())
        self.positions += int((last + 1 - np.maximum(first + 1 - reach, 0)).sum())


class StepTotals:
    """What the costs of some steps of ``ops`` depend on, added up: they are linear in these."""

    def __init__(self, ops: Iterable[RecordedOp]) -> None:
        self.steps = 0
        self.rows = 0
        self.logit_steps = 0  # those with logit rows
        self.logit_rows = 0
        self.attended = {op.constants["window"]: _Attended() for op in ops if op.method == "attention"}

    def add(self, step: StepInput) -> None:
        self.steps += 1
        self.rows += len(step.token_ids)
        self.logit_steps += len(step.logit_rows) > 0
        self.logit_rows += len(step.logit_rows)
        for window, attended in self.attended.items():
            attended.add(step, window)


def profile_of(ops: Sequence[RecordedOp], seconds: Sequence[float], totals: StepTotals) -> list[OpProfile]:
    """The costs of ``ops``, one value a label, in the order the labels first occur. ``seconds`` has one entry an op."""
    by_label: dict[str, OpProfile] = {}
    for op, op_seconds in zip(ops, seconds, strict=True):
        cost = _cost(op, op_seconds, totals)
        by_label[op.label] = _sum(by_label[op.label], cost) if op.label in by_label else cost
    return list(by_label.values())


def _cost(op: RecordedOp, seconds: float, totals: StepTotals) -> OpProfile:
    of_logits = op.output.logit_rows
    steps, rows = (totals.logit_steps, totals.logit_rows) if of_logits else (totals.steps, totals.rows)
    bytes_read = rows * _FLOAT_BYTES * sum(tensor.width for tensor in op.inputs.values())
    operations = int8_operations = 0
    match op.method:
        case "embed":
            table = op.constants["table"]
            bytes_read += rows * (table.nbytes // table.shape[0])
        case "linear":
            parts = op.constants["parts"]
            bytes_read += steps * sum(part.nbytes for part in parts)
            operations = 2 * rows * sum(n * k for n, k in (part.shape for part in parts))
            int8_operations = 2 * rows * sum(n * k for n, k in (part.shape for part in parts if part.is_int8))
        case "attention":
            attended = totals.attended[op.constants["window"]]
            bytes_read += attended.positions * op.constants["kv"].token_bytes
            operations = 2 * 2 * attended.pairs * op.output.width  # with the keys, and with the values
    return OpProfile(op.label, steps, seconds, bytes_read, operations, int8_operations)


def _sum(one: OpProfile, other: OpProfile) -> OpProfile:
    return OpProfile(
        one.label,
        one.calls + other.calls,
        one.seconds + other.seconds,
        one.bytes_read + other.bytes_read,
        one.operations + other.operations,
        one.int8_operations + other.int8_operations,
    )
