import numpy as np
import pytest

from headway.ops.weights import DenseMatrix, GroupQuantized, LinearWeight


def test_dense_formats_are_exact_in_float32():
    values = np.array([[1.5, -2.0], [0.25, 65504.0]], np.float32)
    assert (DenseMatrix(values).to_float32() == values).all()
    assert (DenseMatrix(values.astype(np.float16)).to_float32() == values).all()
    bf16 = (np.array([[1.5, -2.0], [0.25, 3.0e38]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    held = DenseMatrix(bf16, is_bf16=True).to_float32()
    assert held[0].tolist() == [1.5, -2.0] and held[1, 1] == pytest.approx(3.0e38, rel=2**-7)


@pytest.mark.parametrize(
    ("matrix", "name"),
    [
        (DenseMatrix(np.zeros((1, 1), np.float32)), "f32"),
        (DenseMatrix(np.zeros((1, 1), np.float16)), "f16"),
        (DenseMatrix(np.zeros((1, 1), np.uint16), is_bf16=True), "bf16"),
    ],
)
def test_format_names(matrix, name):
    assert matrix.format_name == name


@pytest.mark.parametrize(
    ("bits", "group_size", "zero", "has_minimum"),
    [(4, 32, 8, False), (4, 32, 0, True), (5, 32, 16, False), (6, 16, 32, False), (8, 32, 128, False)],
)
def test_group_quantized_stands_for_scale_times_integer_plus_minimum(bits, group_size, zero, has_minimum):
    rng = np.random.default_rng(bits)
    q = rng.integers(0, 2**bits, (3, 64), dtype=np.uint8)
    scale = rng.standard_normal((3, 64 // group_size)).astype(np.float16)
    minimum = rng.standard_normal(scale.shape).astype(np.float16) if has_minimum else None
    w = GroupQuantized(q, scale, minimum, bits, group_size, zero, "any").to_float32()
    for n in range(3):
        for k in range(64):
            group = k // group_size
            low = 0.0 if minimum is None else float(minimum[n, group])
            expected = float(scale[n, group]) * (int(q[n, k]) - zero) + low
            assert w[n, k] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_stacked_shapes():
    weight = LinearWeight((DenseMatrix(np.zeros((3, 8), np.float32)), DenseMatrix(np.zeros((5, 8), np.float16))))
    assert weight.num_outputs == 8
