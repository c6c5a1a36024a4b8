import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headway.errors import CheckpointError
from headway.model.quant import LAYOUTS, read_matrix, read_vector
from headway.model.tensor import FORMATS, StoredTensor, is_finite
from headway.ops.weights import DenseMatrix, GroupQuantized
from tiny_checkpoints import from_dtype, random_blocks, to_dtype


def stored(raw: np.ndarray, shape: tuple[int, ...], format: str) -> StoredTensor:
    return StoredTensor("w", shape, FORMATS[format], raw.reshape(-1).view(np.uint8), "file")


@pytest.mark.parametrize("format", LAYOUTS)
@pytest.mark.parametrize("scale", [1e-7, 0.01, 1e4])  # subnormal to nearly the largest float16
def test_blocks_stand_for_the_values_that_gguf_decodes(format: str, scale: float) -> None:
    raw = random_blocks(format, 7, 768, np.random.default_rng(3), scale)
    matrix = read_matrix(stored(raw, (7, 768), format))
    assert isinstance(matrix, GroupQuantized)
    assert matrix.format_name == format
    assert matrix.q.max() < 1 << matrix.bits
    np.testing.assert_array_equal(matrix.to_float32(), gguf.quants.dequantize(raw, GGMLQuantizationType[format]))


@pytest.mark.parametrize("format", LAYOUTS)
def test_a_tensor_larger_than_one_part_decodes_the_same(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.model.quant._WEIGHTS_AT_ONCE", 512)
    raw = random_blocks(format, 9, 256, np.random.default_rng(4))
    matrix = read_matrix(stored(raw, (9, 256), format))
    np.testing.assert_array_equal(matrix.to_float32(), gguf.quants.dequantize(raw, GGMLQuantizationType[format]))


@pytest.mark.parametrize("format", FORMATS)
def test_rows_move_with_their_scales(format: str) -> None:
    rng = np.random.default_rng(5)
    if FORMATS[format].is_dense:
        raw = to_dtype(rng.standard_normal((6, 256)).astype(np.float32), format)
    else:
        raw = random_blocks(format, 6, 256, rng)
    order = np.array([5, 0, 3, 1, 2, 4])
    tensor = stored(raw, (6, 256), format)
    np.testing.assert_array_equal(read_matrix(tensor, order).to_float32(), read_matrix(tensor).to_float32()[order])


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_dense_data_is_a_view_of_the_file(format: str) -> None:
    values = np.random.default_rng(6).standard_normal((3, 5)).astype(np.float32)
    raw = to_dtype(values, format)
    matrix = read_matrix(stored(raw, (3, 5), format))
    assert isinstance(matrix, DenseMatrix)
    assert np.shares_memory(matrix.data, raw)
    assert matrix.format_name == format.lower()
    np.testing.assert_array_equal(matrix.to_float32(), from_dtype(raw, format))


def test_bfloat16_beyond_the_range_of_float16_keeps_its_value() -> None:
    raw = to_dtype(np.array([[1e30, -70000.0]], np.float32), "BF16")
    assert read_matrix(stored(raw, (1, 2), "BF16")).to_float32()[0, 0] == pytest.approx(1e30, rel=0.01)


def test_a_misaligned_tensor_reads_right() -> None:
    values = np.arange(6, dtype=np.float32)
    raw = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:]
    vector = read_vector(stored(raw, (6,), "F32"))
    np.testing.assert_array_equal(vector, values)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinite_and_nan_weights_are_refused_by_name(format: str, bad: float) -> None:
    if FORMATS[format].is_dense:
        raw = to_dtype(np.full((2, 256), 1, np.float32), format)
        raw[1, 7] = to_dtype(np.array([bad], np.float32), format)[0]
    else:
        raw = random_blocks(format, 2, 256, np.random.default_rng(7))
        at = 208 if format == "Q6_K" else 0
        raw[1, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
        raw[1, 4:16] = 0x11  # no factor of a K-quant may be zero here: infinity times zero is still caught, as NaN
    with pytest.raises(CheckpointError, match=r"'w'.*infinite or NaN"):
        read_matrix(stored(raw, (2, 256), format))


def test_is_finite_knows_the_largest_numbers_from_infinity() -> None:
    assert is_finite(np.array([np.finfo(np.float32).max, np.finfo(np.float32).min], np.float32))
    assert is_finite(np.array([65504, -65504], np.float16))
    assert is_finite(np.array([0x7F7F, 0xFF7F], np.uint16), is_bf16=True)
    assert is_finite(np.zeros(0, np.float32))
    for value in (np.inf, -np.inf, np.nan, -np.nan):
        assert not is_finite(np.array([1, value], np.float32))
        assert not is_finite(np.array([1, value], np.float16))
