"""Fusion changes how often memory is crossed and not a bit of any result; memory is shared only when it is free."""

from collections import Counter

import numpy as np
import pytest

from headway.model.checkpoint import open_checkpoint
from headway.model.scoring import scoring_program, sequence_logits
from headway.ops.native import NativeBackend
from headway.ops.recorder import NativeLinear, NativeTable, Recorder, emit, fuse
from tiny_checkpoints import FAMILIES, WIDE, tiny_model, write_gguf


class Vector:
    def __init__(self, length):
        self.nbytes = 4 * length


TABLE, EIGHT = NativeTable(None, 8), Vector(8)
LINEAR, GATE_UP = NativeLinear([None], None, 8), NativeLinear([None, None], None, 32)


def methods(ops):
    return Counter(op.method for op in ops)


def recorded(forward):
    ops = Recorder()
    result = forward(ops, ops.embed(ops.step, TABLE, 1.0))
    return ops.ops, result


def test_a_layer_is_fused_into_its_linear_ops():
    def mlp(ops, x):
        gate_up = ops.linear(ops.rms_norm(x, EIGHT, 1e-5), GATE_UP)
        return ops.add(x, ops.linear(ops.gated_activation(gate_up, "silu"), LINEAR))

    before, result = recorded(mlp)
    after = fuse(before, result)
    assert methods(after) == {"embed": 1, "linear": 2}
    assert after[1].constants["weight"] is EIGHT and after[1].constants["kind"] == "silu"
    assert after[2].inputs["residual"] == before[0].output and after[2].output == result


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda ops, x: ops.rms_norm(x, EIGHT, 1e-5), id="the norm is the result"),
        pytest.param(lambda ops, x: ops.linear(ops.rms_norm(x, Vector(4), 1e-5), LINEAR), id="a norm of heads"),
        pytest.param(
            lambda ops, x: ops.linear(ops.columns(ops.rms_norm(x, EIGHT, 1e-5), 0, 4), LINEAR), id="a part of it"
        ),
        pytest.param(lambda ops, x: read_twice(ops, ops.rms_norm(x, EIGHT, 1e-5)), id="two readers"),
    ],
)
def test_what_others_need_stays(forward):
    before = recorded(forward)
    assert methods(fuse(*before))["rms_norm"] == methods(before[0])["rms_norm"]


def test_a_gate_that_is_no_pair_of_matrices_stays():
    one, three = NativeLinear([None], None, 32), NativeLinear([None] * 3, None, 32)
    for weight in (one, three):
        before = recorded(lambda ops, x, w=weight: ops.gated_activation(ops.linear(x, w), "silu"))
        assert methods(fuse(*before)) == methods(before[0])


def read_twice(ops, x):
    return ops.add(ops.linear(x, LINEAR), ops.rms_norm(x, Vector(4), 1e-5))


def test_a_sum_whose_summand_is_read_again_stays():
    def forward(ops, x):
        y = ops.linear(x, LINEAR)
        return ops.add(ops.add(x, y), y)

    assert methods(fuse(*recorded(forward)))["add"] == 2


class FakeProgram:
    """Checks that no op writes a buffer whose value is still wanted."""

    def __init__(self):
        self.num_buffers = 0

    def add_buffer(self, width, logit_rows):
        self.num_buffers += 1
        return self.num_buffers - 1

    def __getattr__(self, method):
        def op(out, **operands):
            tensors = [value for value in operands.values() if hasattr(value, "buffer")]
            assert all(tensor.buffer != out.buffer for tensor in tensors), method

        return op


def test_buffers_are_used_again():
    def deep(ops, x):
        for _ in range(10):
            x = ops.add(x, ops.linear(ops.rms_norm(x, EIGHT, 1e-5), LINEAR))
        return x

    ops, result = recorded(deep)
    for version in (ops, fuse(ops, result)):
        program = FakeProgram()
        emit(version, result, program)
        assert program.num_buffers <= 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", ["Q4_1", "Q6_K", "F32"])
def test_fused_and_unfused_models_give_the_same_bits(family, format, tmp_path):
    write_gguf(tiny_model(family, **(WIDE if format == "Q6_K" else {})), tmp_path / "m.gguf", format)
    ids = np.random.default_rng(0).integers(0, 250, 40).tolist()
    logits = []
    for fused in (True, False):
        checkpoint = open_checkpoint(tmp_path / "m.gguf")
        backend = NativeBackend(2, fused=fused)
        program = scoring_program(checkpoint.architecture, checkpoint.weights(), backend, 64)
        logits += [sequence_logits(program, ids, chunk) for chunk in (0, 1, 3)]
    assert all((other == logits[0]).all() for other in logits[1:])
