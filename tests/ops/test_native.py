"""The native backend against the reference, op by op, on every instruction set this machine has, and law 1 with ==."""

import numpy as np
import pytest

from headway import _native
from headway.ops.contract import KVLayout, StepInput, StepLimits
from headway.ops.native import NativeBackend
from headway.ops.reference import ReferenceBackend
from headway.ops.weights import DenseMatrix, GroupQuantized, LinearWeight

ISAS = _native.available_isas()
MAX_CONTEXT = 1024
LIMITS = StepLimits(max_rows=600, max_logit_rows=600)


def floats(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def int32(values):
    return np.asarray(values, np.int32)


def rows_step(token_ids, logit_rows=None):
    """One request whose positions are 0 .. n - 1, in blocks of 16 from the pool's start."""
    n = len(token_ids)
    blocks = int32(np.arange(-(-n // 16)))[None]
    every = int32(np.arange(n)) if logit_rows is None else int32(logit_rows)
    return StepInput(int32(token_ids), int32(np.arange(n)), int32([0, n]), blocks, every)


def quantized(n, k, bits, group, zero=0, minimum=False, wide=False, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.float32 if wide else np.float16
    scale = (rng.uniform(0.01, 0.1, (n, k // group)) * rng.choice([-1, 1], (n, k // group))).astype(dtype)
    low = rng.uniform(-1, 0, (n, k // group)).astype(dtype) if minimum else None
    return GroupQuantized(rng.integers(0, 2**bits, (n, k), np.uint8), scale, low, bits, group, zero, "test")


def bf16(values):
    return DenseMatrix((values.view(np.uint32) >> 16).astype(np.uint16), is_bf16=True)


MATRICES = {
    "f32": lambda n, k: DenseMatrix(floats(n, k, seed=1)),
    "f16": lambda n, k: DenseMatrix(floats(n, k, seed=1).astype(np.float16)),
    "bf16": lambda n, k: bf16(floats(n, k, seed=1)),
    "Q4_0": lambda n, k: quantized(n, k, 4, 32, zero=8),
    "Q4_1": lambda n, k: quantized(n, k, 4, 32, minimum=True),
    "Q5_0": lambda n, k: quantized(n, k, 5, 32, zero=16),
    "Q5_1": lambda n, k: quantized(n, k, 5, 32, minimum=True),
    "Q8_0": lambda n, k: quantized(n, k, 8, 32, zero=128),
    "Q4_K": lambda n, k: quantized(n, k, 4, 32, minimum=True, wide=True),
    "Q5_K": lambda n, k: quantized(n, k, 5, 32, minimum=True, wide=True),
    "Q6_K": lambda n, k: quantized(n, k, 6, 16, zero=32, wide=True),
}


def run_op(backend, x, op, step=None):
    """``op(ops, rows)`` on the rows of ``x``, which reach the program through a float32 table."""
    table = backend.load_table(DenseMatrix(x))
    program = backend.compile(lambda ops, s: op(ops, ops.embed(s, table, 1.0), s), LIMITS)
    return program.run(step or rows_step(np.arange(len(x)))).copy()


def int8_rounded(x):
    """What int8 activations in groups of 32 stand for."""
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / 127
    with np.errstate(invalid="ignore", divide="ignore"):
        q = np.where(scale > 0, np.rint(groups / scale), 0)
    return (q * scale).reshape(x.shape).astype(np.float32)


@pytest.fixture(params=ISAS)
def isa(request):
    return request.param


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (37, 64), (130, 96)])
def test_linear_is_the_product_of_what_it_reads(isa, name, n, k):
    matrix = MATRICES[name](n, k)
    x = floats(11, k, seed=2)
    fixed_point = isa == "amx" and k % 64 == 0 and isinstance(matrix, GroupQuantized)
    seen = int8_rounded(x) if isinstance(matrix, GroupQuantized) and not fixed_point else x
    bias = floats(n, seed=3)
    backend = NativeBackend(2, isa)
    weight = backend.load_linear(LinearWeight((matrix,), bias))
    y = run_op(backend, x, lambda ops, rows, _: ops.linear(rows, weight))
    expected = seen.astype(float) @ matrix.to_float32().astype(float).T + bias
    # Rounding to int8 may go either way on a tie, which moves a result by one step of one input. Fixed point rounds
    # inputs to 1/8191 of the largest, and weights to 1/254.
    step = 4e-3 if fixed_point else 2e-6
    tolerance = step * np.abs(seen).sum(axis=1).max() * np.abs(matrix.to_float32()).max() + 1e-5
    assert np.abs(y - expected).max() < tolerance


@pytest.mark.parametrize(("bits", "group", "zero"), [(4, 32, 0), (4, 32, 8), (6, 16, 32), (8, 32, 128), (8, 32, 0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integers_do_not_saturate(isa, bits, group, zero, sign):
    """Every weight at its largest and every activation at 127 or -127: sums of products that some instructions clip."""
    k, top = 128, 2**bits - 1
    ones = np.ones((16, k // group), np.float16)
    q = np.full((16, k), top, np.uint8)
    backend = NativeBackend(1, isa)
    weight = backend.load_linear(LinearWeight((GroupQuantized(q, ones, None, bits, group, zero, "test"),)))
    y = run_op(backend, np.full((3, k), sign, np.float32), lambda ops, rows, _: ops.linear(rows, weight))
    assert np.allclose(y, sign * k * (top - zero), rtol=5e-3 if isa == "amx" else 1e-6)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_input_that_is_no_number_makes_none(isa, name, rows, value):
    """It must not be rounded into a harmless one: the request that has it is to fail, and no other."""
    backend = NativeBackend(2, isa)
    weight = backend.load_linear(LinearWeight((MATRICES[name](32, 64),)))
    x = floats(rows, 64, seed=6)
    x[1, 5] = value
    y = run_op(backend, x, lambda ops, rows, _: ops.linear(rows, weight))
    assert not np.isfinite(y[1]).any() and np.isfinite(np.delete(y, 1, axis=0)).all()


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("k", [96, 1152])
def test_a_row_of_linear_is_the_same_alone_and_in_any_batch(isa, name, k):
    """On any number of threads, and from whichever form of the weights."""
    x = floats(64, k, seed=4)
    parts = (MATRICES[name](50, k), MATRICES["Q8_0"](18, k))
    results = {}
    for threads, wide_bytes in ((1, 0), (2, 0), (2, 1 << 20)):
        backend = NativeBackend(threads, isa, wide_weights_bytes=wide_bytes)
        weight = backend.load_linear(LinearWeight(parts, floats(68, seed=5)))
        table = backend.load_table(DenseMatrix(x))
        program = backend.compile(lambda ops, s, t=table, w=weight: ops.linear(ops.embed(s, t, 1.0), w), LIMITS)
        for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33, 64):
            ids = np.arange(64)
            pieces = [program.run(rows_step(ids[i : i + size])).copy() for i in range(0, 64, size)]
            results[threads, wide_bytes, size] = np.concatenate(pieces)
    first = results[1, 0, 1]
    assert all((result == first).all() for result in results.values())


@pytest.mark.parametrize("name", MATRICES)
def test_embed_gives_the_exact_values_of_the_format(isa, name):
    matrix = MATRICES[name](37, 64)
    backend = NativeBackend(1, isa)
    table = backend.load_table(matrix)
    program = backend.compile(lambda ops, s: ops.embed(s, table, 2.0), LIMITS)
    ids = np.random.default_rng(0).integers(0, 37, 20)
    assert np.allclose(program.run(rows_step(ids)), 2 * matrix.to_float32()[ids], rtol=1e-6, atol=1e-6)


def test_a_tied_table_is_packed_once():
    matrix = MATRICES["Q8_0"](32, 64)
    backend = NativeBackend(1)
    backend.load_table(matrix)
    size = backend.weight_bytes()
    backend.load_linear(LinearWeight((matrix,)))
    assert backend.weight_bytes() == size


@pytest.mark.parametrize("width", [8, 16, 48, 100, 576])
def test_row_ops_are_close_to_the_reference(isa, width):
    x, y = floats(9, width, seed=6, scale=3), floats(9, width, seed=7)
    d = width // 2
    ops = {
        "norm": lambda b: (lambda w: lambda ops, rows, s: ops.rms_norm(rows, w, 1e-5))(
            b.load_vector(floats(width, seed=8))
        ),
        "head norm": lambda b: (lambda w: lambda ops, rows, s: ops.rms_norm(rows, w, 1e-5))(
            b.load_vector(floats(d, seed=8))
        ),
        "silu": lambda b: lambda ops, rows, s: ops.gated_activation(rows, "silu"),
        "gelu": lambda b: lambda ops, rows, s: ops.gated_activation(rows, "gelu_tanh"),
        "add": lambda b: (lambda t: lambda ops, rows, s: ops.add(rows, ops.embed(s, t, 1.0)))(
            b.load_table(DenseMatrix(y))
        ),
        "columns": lambda b: lambda ops, rows, s: ops.gated_activation(ops.columns(rows, d // 2, d), "silu"),
        "rows": lambda b: lambda ops, rows, s: ops.take_logit_rows(rows, s),
    }
    step = rows_step(np.arange(9), logit_rows=[1, 4, 8])
    for name, make in ops.items():
        native, reference = NativeBackend(2, isa), ReferenceBackend()
        got, expected = (run_op(b, x, make(b), step) for b in (native, reference))
        if got.shape != expected.shape:  # ops of all rows seen through the logit rows' view
            expected = expected[: len(got)]
        assert np.allclose(got, expected, rtol=2e-6, atol=2e-6), name


def test_activations_have_no_nan_at_the_ends_of_the_range(isa):
    gate = np.array([[-1e30, -200, -104, -88, 0, 88, 104, 1e30] * 2], np.float32)
    x = np.concatenate([gate, np.ones_like(gate)], axis=1)
    for kind in ("silu", "gelu_tanh"):
        got, expected = (
            run_op(b, x, lambda ops, rows, s, kind=kind: ops.gated_activation(rows, kind))
            for b in (NativeBackend(1, isa), ReferenceBackend())
        )
        with np.errstate(over="ignore"):
            assert np.allclose(got, expected, rtol=1e-5, atol=1e-6)


# -- attention ---------------------------------------------------------------------------------------------------------


class Attention:
    """rope_and_store then attention, on a pool whose blocks are dealt out in a scrambled order."""

    def __init__(self, backend, heads, kv_heads, d, window, dtype, rows, seed=0, block_size=16, poisoned_from=None):
        rng = np.random.default_rng(seed)
        self.num_blocks, self.block_size = 128, block_size
        layout = KVLayout(kv_heads, d, self.num_blocks, block_size, dtype)
        [kv] = backend.new_kv_cache(layout, 1)
        angles = np.arange(MAX_CONTEXT)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        rope = backend.load_rope(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
        x = floats(rows, (heads + 2 * kv_heads) * d, seed=seed + 1)
        x[poisoned_from or rows :] = np.nan
        table = backend.load_table(DenseMatrix(x))

        def forward(ops, step):
            qkv = ops.embed(step, table, 1.0)
            q = ops.columns(qkv, 0, heads * d)
            k = ops.columns(qkv, heads * d, kv_heads * d)
            v = ops.columns(qkv, (heads + kv_heads) * d, kv_heads * d)
            q = ops.rope_and_store(q, k, v, step, rope, kv)
            return ops.attention(q, step, kv, d**-0.5, window)

        self.program = backend.compile(forward, LIMITS)
        self.blocks = rng.permutation(self.num_blocks).astype(np.int32)

    def run(self, requests):
        """``requests``: (token ids of its rows, first position, its part of the pool: first block, how many)."""
        ids = np.concatenate([r[0] for r in requests])
        positions = np.concatenate([np.arange(r[1], r[1] + len(r[0])) for r in requests])
        row_starts = np.cumsum([0, *(len(r[0]) for r in requests)])
        width = max(r[3] for r in requests)
        tables = np.full((len(requests), width), -1, np.int32)
        for i, (_, _, first, count) in enumerate(requests):
            tables[i, :count] = self.blocks[first : first + count]
        step = StepInput(int32(ids), int32(positions), int32(row_starts), tables, int32(np.arange(len(ids))))
        return self.program.run(step).copy()


SHAPES = [
    (9, 3, 64, 0, "bf16"),
    (4, 1, 256, 40, "bf16"),
    (4, 4, 32, 0, "f32"),
    (6, 2, 40, 300, "f32"),
    (2, 1, 8, 5, "bf16"),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_close_to_the_reference(isa, shape):
    rows = np.arange(400)
    got, expected = (
        Attention(b, *shape, rows=400).run([(rows, 0, 0, 25)]) for b in (NativeBackend(2, isa), ReferenceBackend())
    )
    # The matrix unit's kernels round queries and weights as well: each by at most 2**-9, and few by as much.
    tolerance = 1e-2 if isa == "amx" and shape[2] % 64 == 0 else 2e-5
    assert np.allclose(got[:400], expected, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_the_same_in_chunks_among_neighbours_and_on_any_number_of_threads(isa, shape):
    rows = np.arange(300)
    whole = Attention(NativeBackend(1, isa), *shape, rows=600).run([(rows, 0, 0, 19)])
    for threads in (1, 2, 3):
        for chunk in (1, 7, 64, 300):
            attention = Attention(NativeBackend(threads, isa), *shape, rows=600)
            pieces = []
            for start in range(0, 300, chunk):
                mine = (rows[start : start + chunk], start, 0, 19)
                other = (np.arange(300 + start % 90, 300 + start % 90 + 5), start % 50, 40, 10)
                if start % 2:
                    n = len(mine[0])
                    pieces.append(attention.run([mine, other])[:n])
                else:
                    pieces.append(attention.run([other, mine])[5 : 5 + len(mine[0])])
            assert (np.concatenate(pieces) == whole).all(), (threads, chunk)


def test_leftovers_of_another_request_are_never_read(isa):
    """A block that held NaN, reused: law 6 on the level of the kernel."""
    shape = (6, 2, 32, 0, "f32")
    clean = Attention(NativeBackend(1, isa), *shape, rows=80).run([(np.arange(37), 0, 0, 3)])
    dirty = Attention(NativeBackend(1, isa), *shape, rows=80, poisoned_from=48)
    assert np.isnan(dirty.run([(np.arange(48, 80), 0, 0, 2)])).all()
    dirty.run([(np.arange(48, 64), 32, 0, 3)])
    assert (dirty.run([(np.arange(37), 0, 0, 3)]) == clean).all()


def test_steps_that_would_leave_their_memory_are_refused():
    attention = Attention(NativeBackend(1), 4, 2, 16, 0, "bf16", rows=40)
    good = ([0, 1], 0, 0, 1)
    attention.run([good])
    for bad in (([40], 0, 0, 1), ([-1], 0, 0, 1), ([0], 16, 0, 1), ([0], 2000, 0, 100), ([], 0, 0, 1)):
        with pytest.raises(IndexError):
            attention.run([bad])
    attention.blocks[0] = 128
    with pytest.raises(IndexError, match="block"):
        attention.run([good])


def test_an_instruction_set_this_machine_lacks_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'sve9' is not available here; this processor has: .*portable"):
        NativeBackend(1, "sve9")
