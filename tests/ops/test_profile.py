"""Costs against numbers worked out by hand, and what a program measures of itself."""

from types import SimpleNamespace

import numpy as np
import pytest

from headway.model.checkpoint import open_checkpoint
from headway.model.scoring import scoring_program, sequence_logits
from headway.ops.contract import StepInput
from headway.ops.native import NativeBackend
from headway.ops.profile import OpProfile, StepTotals, profile_of
from headway.ops.recorder import NativeLinear, NativeTable, Recorder, fuse
from tiny_checkpoints import FAMILIES, tiny_model, write_gguf


def step(*requests, block_size=16, num_logits=None):
    """``requests``: (first position, rows). Logits of the last row of each, or of the first ``num_logits``."""
    counts = [rows for _, rows in requests]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.concatenate([np.arange(first, first + rows, dtype=np.int32) for first, rows in requests])
    tables = np.zeros((len(requests), int(positions.max()) // block_size + 1), np.int32)
    return StepInput(np.zeros_like(positions), positions, starts, tables, (starts[1:] - 1)[:num_logits])


def part(n, k, nbytes, is_int8=True):
    return SimpleNamespace(shape=(n, k), nbytes=nbytes, is_int8=is_int8)


def layer(ops, step, window=0):
    """Width 8, two heads of 4, one kv head. Weights: int8 and 16-bit parts of invented sizes."""
    kv = SimpleNamespace(token_bytes=16)
    x = ops.embed(step, NativeTable(SimpleNamespace(shape=(10, 8), nbytes=100), 8), 1.0)
    norm = SimpleNamespace(nbytes=32)
    qkv = NativeLinear([part(12, 8, 50), part(4, 8, 64, is_int8=False)], None, 16, "qkv")
    y = ops.linear(ops.rms_norm(x, norm, 1e-5), qkv)
    q, k, v = ops.columns(y, 0, 8), ops.columns(y, 8, 4), ops.columns(y, 12, 4)
    y = ops.attention(ops.rope_and_store(q, k, v, step, None, kv), step, kv, 0.5, window)
    x = ops.add(x, ops.linear(y, NativeLinear([part(8, 8, 40)], None, 8, "o")))
    return ops.linear(ops.take_logit_rows(x, step), NativeLinear([part(10, 8, 30)], None, 10, "head"))


def costs(steps, window=0):
    recorder = Recorder()
    ops = fuse(recorder.ops, layer(recorder, recorder.step, window))
    totals = StepTotals(ops)
    for one in steps:
        totals.add(one)
    return {profile.label: profile for profile in profile_of(ops, [0.5] * len(ops), totals)}


def test_costs_of_two_steps_worked_out_by_hand():
    """Five rows: a prompt of 3 at positions 0-2 and rows at 7 and 9; logits of three of them."""
    found = costs([step((0, 3), (7, 1)), step((9, 1))])
    rows = 5
    assert found["embed"] == OpProfile("embed", 2, 0.5, rows * 10)
    qkv_bytes = 2 * (50 + 64) + rows * 8 * 4  # the weights in each step, the input rows once
    assert found["qkv"] == OpProfile("qkv", 2, 0.5, qkv_bytes, 2 * rows * 16 * 8, 2 * rows * 12 * 8)
    assert found["rope_and_store"].bytes_read == rows * (8 + 4 + 4) * 4
    pairs, positions = (1 + 2 + 3) + 8 + 10, 3 + 8 + 10
    assert found["attention"] == OpProfile("attention", 2, 0.5, positions * 16 + rows * 8 * 4, 4 * pairs * 8, 0)
    assert found["o"].bytes_read == 2 * 40 + rows * (8 + 8) * 4  # and the residual it adds
    assert found["head"] == OpProfile("head", 2, 0.5, 2 * 30 + 3 * 8 * 4, 2 * 3 * 10 * 8, 2 * 3 * 10 * 8)


def test_a_window_bounds_what_attention_reads():
    found = costs([step((6, 4), (1, 1))], window=3)["attention"]
    pairs, positions = 4 * 3 + 2, 6 + 2  # rows 6-9 look at 3 each, of 4-9 in all; row 1 looks at both there are
    assert found.operations == 4 * pairs * 8 and found.bytes_read == positions * 16 + 5 * 8 * 4


def test_a_step_without_logits_does_not_read_the_head():
    assert costs([step((0, 3), num_logits=0)])["head"] == OpProfile("head", 0, 0.5, 0)


def test_ops_of_one_label_are_added_up():
    recorder = Recorder()
    x = recorder.embed(recorder.step, NativeTable(SimpleNamespace(shape=(10, 8), nbytes=100), 8), 1.0)
    for _ in range(3):
        x = recorder.linear(x, NativeLinear([part(8, 8, 40)], None, 8, "o"))
    totals = StepTotals(recorder.ops)
    totals.add(step((0, 2)))
    [_, o] = profile_of(recorder.ops, [0.0, 1.0, 2.0, 4.0], totals)
    assert o == OpProfile("o", 3, 7.0, 3 * (40 + 2 * 8 * 4), 3 * 2 * 2 * 64, 3 * 2 * 2 * 64)


@pytest.fixture(params=FAMILIES)
def program(request, tmp_path):
    write_gguf(tiny_model(request.param), tmp_path / "m.gguf", "Q8_0")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    return scoring_program(checkpoint.architecture, checkpoint.weights(), NativeBackend(2), 64)


def test_a_profile_covers_the_steps_between_start_and_stop_and_changes_no_bit(program):
    ids = list(range(40))
    before = sequence_logits(program, ids, 8)
    program.start_profile()
    assert (sequence_logits(program, ids, 8) == before).all()
    profile = program.stop_profile()
    labels = {op.label: op for op in profile}
    assert {"embed", "qkv", "attention", "o", "gate_up", "down", "head"} <= set(labels)
    assert labels["embed"].calls == labels["head"].calls == 5
    assert all(op.seconds > 0 for op in profile)
    assert (sequence_logits(program, ids, 8) == before).all()
    program.start_profile()
    assert all(op.seconds == op.calls == op.bytes_read == 0 for op in program.stop_profile())
