"""Each operation against a plain float64 formula written independently, and law 1 with ==."""

import math

import numpy as np
import pytest

from headway.ops.contract import KVLayout, StepInput
from headway.ops.reference import ReferenceBackend, ReferenceOps, gelu_tanh, round_to_bf16, silu
from headway.ops.weights import DenseMatrix, GroupQuantized, LinearWeight

OPS = ReferenceOps()
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def int32(*values):
    return np.array(values, np.int32)


def step_of(requests, block_tables, logit_rows=()):
    """``requests``: (first position, number of rows) of each."""
    positions = np.concatenate([np.arange(start, start + n) for start, n in requests]).astype(np.int32)
    row_starts = np.cumsum([0, *(n for _, n in requests)]).astype(np.int32)
    return StepInput(np.zeros_like(positions), positions, row_starts, block_tables, int32(*logit_rows))


def rope_table(max_context, d, theta=10000.0):
    angles = np.arange(max_context)[:, None] * theta ** (-np.arange(0, d, 2) / d)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


# -- one operation at a time -------------------------------------------------------------------------------------------


def test_embed_gathers_and_scales():
    table = ReferenceBackend().load_table(DenseMatrix(floats(10, 4)))
    step = StepInput(int32(3, 3, 9), int32(0, 1, 2), int32(0, 3), int32(0)[None], int32())
    assert (OPS.embed(step, table, 2.0) == 2 * floats(10, 4)[[3, 3, 9]]).all()


def test_rms_norm_over_the_whole_width_and_per_head():
    x, weight = floats(3, 12), floats(4, seed=1)
    for width in (12, 4):
        w = np.resize(weight, width)
        expected = [
            [v / math.sqrt(sum(u * u for u in run) / width + 1e-5) * s for v, s in zip(run, w.tolist(), strict=True)]
            for run in x.astype(float).reshape(-1, width).tolist()
        ]
        assert np.allclose(OPS.rms_norm(x, w, 1e-5), np.reshape(expected, x.shape), **CLOSE)


def test_rms_norm_of_zeros_is_zero():
    assert (OPS.rms_norm(np.zeros((2, 8), np.float32), np.ones(8, np.float32), 1e-6) == 0).all()


def test_linear_stacks_parts_of_different_formats_and_adds_the_bias():
    rng = np.random.default_rng(0)
    dense = DenseMatrix(floats(5, 32).astype(np.float16))
    q = rng.integers(0, 16, (3, 32), dtype=np.uint8)
    grouped = GroupQuantized(q, floats(3, 1, seed=2), None, 4, 32, 8, "Q4_0")
    bias = floats(8, seed=3)
    x = floats(4, 32, seed=4)
    y = OPS.linear(x, ReferenceBackend().load_linear(LinearWeight((dense, grouped), bias)))
    w = np.concatenate([dense.data.astype(float), (q.astype(float) - 8) * floats(3, 1, seed=2)])
    assert np.allclose(y, np.einsum("nk,ok->no", x.astype(float), w) + bias, **CLOSE)


def test_activations():
    x = np.linspace(-200, 200, 401, dtype=np.float32)
    with np.errstate(over="ignore"):
        assert np.allclose(silu(x), x / (1 + np.exp(-x.astype(float))), **CLOSE)
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    assert np.allclose(gelu_tanh(x), expected, **CLOSE)


@pytest.mark.parametrize(("kind", "function"), [("silu", silu), ("gelu_tanh", gelu_tanh)])
def test_gated_activation_splits_gate_first(kind, function):
    x = floats(3, 10)
    assert np.allclose(OPS.gated_activation(x, kind), function(x[:, :5]) * x[:, 5:], **CLOSE)


def test_columns_add_and_take_logit_rows():
    x = floats(4, 6)
    assert (OPS.columns(x, 2, 3) == x[:, 2:5]).all()
    assert (OPS.add(x, x) == 2 * x).all()
    step = step_of([(0, 4)], int32(0)[None], logit_rows=(1, 3))
    assert (OPS.take_logit_rows(x, step) == x[[1, 3]]).all()


def test_a_step_may_want_no_logits():
    x = OPS.take_logit_rows(floats(4, 6), step_of([(0, 4)], int32(0)[None]))
    weight = ReferenceBackend().load_linear(LinearWeight((DenseMatrix(floats(9, 6)),)))
    assert OPS.linear(OPS.rms_norm(x, np.ones(6, np.float32), 1e-6), weight).shape == (0, 9)


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    one, ulp = 1.0, 2.0**-7  # bf16 has 8 significant bits
    x = np.array([one, one + ulp / 2, one + 1.5 * ulp, one + ulp / 2 + 2.0**-20, np.inf, -np.inf], np.float32)
    assert round_to_bf16(x).tolist() == [one, one, one + 2 * ulp, one + ulp, np.inf, -np.inf]
    assert np.isnan(round_to_bf16(np.array([np.nan, -np.nan], np.float32))).all()


def test_rope_is_a_complex_rotation_of_half_split_pairs():
    heads, d = 2, 8
    [kv] = ReferenceBackend().new_kv_cache(KVLayout(1, d, 4, 4, "f32"), 1)
    q, k, v = floats(3, heads * d), floats(3, d, seed=1), floats(3, d, seed=2)
    step = step_of([(5, 3)], int32(3, 0)[None])
    rotated = OPS.rope_and_store(q, k, v, step, rope_table(16, d), kv)

    def turn(x, position):  # [d]: pairs (i, i + d/2) as complex numbers
        z = (x[: d // 2] + 1j * x[d // 2 :]) * np.exp(1j * position * 10000.0 ** (-np.arange(0, d, 2) / d))
        return np.concatenate([z.real, z.imag])

    for i, position in enumerate((5, 6, 7)):
        expected = [turn(head, position) for head in q[i].astype(float).reshape(heads, d)]
        assert np.allclose(rotated[i].reshape(heads, d), expected, **CLOSE)
        assert np.allclose(kv.keys[0, position % 4, 0], turn(k[i].astype(float), position), **CLOSE)
        assert (kv.values[0, position % 4, 0] == v[i]).all()
    assert (kv.keys[1:] == 0).all() and (kv.keys[0, 0] == 0).all()  # nothing else was written


def test_bf16_kv_holds_rounded_values():
    [kv] = ReferenceBackend().new_kv_cache(KVLayout(2, 4, 1, 4, "bf16"), 1)
    v = floats(1, 8)
    OPS.rope_and_store(floats(1, 8), floats(1, 8), v, step_of([(0, 1)], int32(0)[None]), rope_table(4, 4), kv)
    assert (kv.values[0, 0].reshape(-1) == round_to_bf16(v[0])).all()
    assert not (kv.values[0, 0].reshape(-1) == v[0]).any()


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_attention_is_causal_grouped_and_windowed(window):
    kv_heads, group, d, length, scale = 2, 3, 4, 11, 0.3
    [kv] = ReferenceBackend().new_kv_cache(KVLayout(kv_heads, d, 4, 4, "f32"), 1)
    keys, values = floats(length, kv_heads, d, seed=1), floats(length, kv_heads, d, seed=2)
    table = int32(2, 0, 3)
    for p in range(length):
        kv.write(table[p // 4], p % 4, keys[p], values[p])
    q = floats(length, kv_heads * group * d, seed=3)
    y = OPS.attention(q, step_of([(0, length)], table[None]), kv, scale, window)
    for p in range(length):
        first = max(0, p - window + 1) if window else 0
        for head in range(kv_heads * group):
            one_q = q[p].astype(float).reshape(-1, d)[head]
            scores = [scale * float(one_q @ keys[t, head // group]) for t in range(first, p + 1)]
            weights = np.exp(scores) / np.exp(scores).sum()
            expected = sum(w * values[t, head // group] for w, t in zip(weights, range(first, p + 1), strict=True))
            assert np.allclose(y[p].reshape(-1, d)[head], expected, **CLOSE)


def test_a_windowed_layer_never_touches_blocks_behind_its_window():
    [kv] = ReferenceBackend().new_kv_cache(KVLayout(1, 4, 2, 4, "f32"), 1)
    step = step_of([(6, 1)], int32(-1, 1)[None])
    assert np.isfinite(OPS.attention(floats(1, 4), step, kv, 1.0, window=3)).all()
    with pytest.raises(IndexError, match="no KV block"):
        OPS.attention(floats(1, 4), step, kv, 1.0, window=4)


def test_a_position_without_a_block_is_an_error():
    [kv] = ReferenceBackend().new_kv_cache(KVLayout(1, 4, 2, 4, "f32"), 1)
    with pytest.raises(IndexError, match="no KV block"):
        x = floats(1, 4)
        OPS.rope_and_store(x, x, x, step_of([(4, 1)], int32(0, -1)[None]), rope_table(8, 4), kv)


# -- the backend -------------------------------------------------------------------------------------------------------


def test_a_table_used_as_output_matrix_is_held_once():
    backend = ReferenceBackend()
    table = DenseMatrix(floats(10, 4))
    loaded = backend.load_table(table)
    assert backend.load_linear(LinearWeight((table,))).weight is loaded
    assert backend.weight_bytes() == 10 * 4 * 4
    backend.load_linear(LinearWeight((DenseMatrix(floats(10, 4)),)))  # equal, but another matrix
    assert backend.weight_bytes() == 2 * 10 * 4 * 4


# -- law 1 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 48), (96, 576), (1000, 128)])
def test_linear_rows_do_not_depend_on_their_neighbours(shape):
    weight = ReferenceBackend().load_linear(LinearWeight((DenseMatrix(floats(*shape)),)))
    x = floats(33, shape[1], seed=1)
    y = OPS.linear(x, weight)
    assert all((OPS.linear(x[i : i + 1], weight)[0] == y[i]).all() for i in range(len(x)))
    assert (OPS.linear(x[::-1], weight)[::-1] == y).all()
    wide = floats(33, shape[1] + 7, seed=2)
    wide[:, 7:] = x
    assert (OPS.linear(wide[:, 7:], weight) == y).all()  # nor on where they lie in memory


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_row_wise_ops_do_not_depend_on_neighbours_or_memory(kind):
    x, weight = 3 * floats(33, 74), floats(37, seed=1)
    normed, activated = OPS.rms_norm(x, weight, 1e-6), OPS.gated_activation(x, kind)
    for i in range(len(x)):
        shifted = np.empty(74 + i, np.float32)[i:]
        shifted[:] = x[i]
        assert (OPS.rms_norm(shifted[None], weight, 1e-6)[0] == normed[i]).all()
        assert (OPS.gated_activation(shifted[None], kind)[0] == activated[i]).all()


@pytest.mark.parametrize("window", [0, 5])
def test_attention_does_not_depend_on_chunks_blocks_or_other_requests(window):
    kv_heads, group, d, length = 2, 3, 16, 23
    q, k, v = (
        floats(length, kv_heads * group * d),
        floats(length, kv_heads * d, seed=1),
        floats(length, kv_heads * d, seed=2),
    )
    rope = rope_table(32, d)

    def run(table, chunks, neighbour):
        [kv] = ReferenceBackend().new_kv_cache(KVLayout(kv_heads, d, 16, 4, "bf16"), 1)
        tables = np.stack([table, np.arange(10, 16, dtype=np.int32)])
        outputs, start = [], 0
        for n in chunks:
            part = slice(start, start + n)
            requests = [(0, 2), (start, n)] if neighbour else [(start, n)]
            step = step_of(requests, tables[::-1] if neighbour else tables[:1])
            padding = floats(2, 1000, seed=start) if neighbour else floats(0, 1000)
            rows = [np.concatenate([padding[:, : x.shape[1]], x[part]]) for x in (q, k, v)]
            rotated = OPS.rope_and_store(*rows, step, rope, kv)
            outputs.append(OPS.attention(rotated, step, kv, 0.25, window)[len(padding) :])
            start += n
        return np.concatenate(outputs)

    whole = run(np.arange(6, dtype=np.int32), [length], neighbour=False)
    assert (run(int32(5, 1, 4, 0, 2, 3), [length], neighbour=True) == whole).all()
    assert (run(np.arange(6, dtype=np.int32), [1] * length, neighbour=False) == whole).all()
    assert (run(int32(9, 8, 7, 6, 5, 4), [7, 7, 7, 2], neighbour=True) == whole).all()
