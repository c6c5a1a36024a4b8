"""From a stored tensor to a matrix: blocks become integers, scales and minimums, exactly; dense data stays a view.

The block layouts are those of GGML (ggml-common.h). In all of them a block holds 32 or 256 consecutive weights of a
row, scales first or last, and the integers in bit fields. Bytes carry fields from their lowest bits up: in a 4-bit run
of w bytes, the low nibbles are weights 0 .. w - 1 and the high nibbles weights w .. 2w - 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError
from headway.model.tensor import StoredTensor, is_finite
from headway.ops.weights import DenseMatrix, GroupQuantized, Matrix

Bytes = NDArray[np.uint8]
Values = NDArray[np.generic]
# (q [blocks, weights], scale [blocks, groups], minimum [blocks, groups] or None)
Unpacked = tuple[Bytes, Values, Values | None]

_WEIGHTS_AT_ONCE = 1 << 22  # bounds the temporaries of unpacking


def read_matrix(tensor: StoredTensor, rows: NDArray[np.intp] | None = None) -> Matrix:
    """The matrix [n, k] in its own format, or with ``rows`` the matrix whose row i is stored row ``rows[i]``.

    A vector reads as one row. Raises CheckpointError when a weight or a scale is infinite or NaN.
    """
    raw = tensor.data.reshape(-1, len(tensor.data) // _num_rows(tensor))
    if rows is not None:
        raw = raw[rows]
    matrix = _dense(tensor, raw) if tensor.format.is_dense else _quantised(tensor, raw)
    if not _all_finite(matrix):
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name!r} has infinite or NaN weights; get a sound copy of the file"
        )
    return matrix


def read_vector(tensor: StoredTensor, rows: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
    """A norm or a bias as float32 [n], a copy; ``rows`` reorders its elements."""
    values = read_matrix(tensor).to_float32().reshape(-1)
    return values if rows is None else values[rows]


def _num_rows(tensor: StoredTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) == 2 else 1


def _dense(tensor: StoredTensor, raw: Bytes) -> DenseMatrix:
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[tensor.format.name]
    return DenseMatrix(np.require(raw.view(dtype), requirements="A"), tensor.format.name == "BF16")


def _all_finite(matrix: Matrix) -> bool:
    if isinstance(matrix, DenseMatrix):
        return is_finite(matrix.data, matrix.is_bf16)
    return is_finite(matrix.scale) and (matrix.minimum is None or is_finite(matrix.minimum))


def _quantised(tensor: StoredTensor, raw: Bytes) -> GroupQuantized:
    layout = LAYOUTS[tensor.format.name]
    n, blocks_per_row = len(raw), raw.shape[1] // tensor.format.block_bytes
    k = blocks_per_row * tensor.format.block_size
    q = np.empty((n, k), np.uint8)
    scale = np.empty((n, k // layout.group_size), layout.scale_dtype)
    minimum = np.empty_like(scale) if layout.has_minimum else None
    step = max(1, _WEIGHTS_AT_ONCE // k)
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        blocks = raw[part].reshape(-1, tensor.format.block_bytes)
        part_q, part_scale, part_minimum = layout.unpack(blocks)
        q[part] = part_q.reshape(-1, k)
        scale[part] = part_scale.reshape(-1, scale.shape[1])
        if minimum is not None and part_minimum is not None:
            minimum[part] = part_minimum.reshape(-1, scale.shape[1])
    return GroupQuantized(q, scale, minimum, layout.bits, layout.group_size, layout.zero, tensor.format.name)


def _fields(packed: Bytes, bits: int) -> Bytes:
    """[m, w] bytes -> [m, 8 // bits, w]: field j of every byte. w is a multiple of 8: eight bytes go at once."""
    words = np.ascontiguousarray(packed).view(np.uint64)
    mask = np.uint64(0x0101010101010101 * ((1 << bits) - 1))
    fields = np.empty((len(words), 8 // bits, words.shape[1]), np.uint64)
    for j in range(8 // bits):
        np.right_shift(words, np.uint64(j * bits), out=fields[:, j])
        fields[:, j] &= mask
    return fields.view(np.uint8)


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """The float16 at byte ``at`` of every block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit j of the 32-bit word at byte ``at`` is bit 4 of weight j: [blocks, 32], already in place (0 or 16)."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 2:], 4).reshape(-1, 32), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 4:], 4).reshape(-1, 32), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 6:], 4).reshape(-1, 32) | _fifth_bits(blocks, 2), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 8:], 4).reshape(-1, 32) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Unpacked:
    return blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None  # signed byte + 128


def _q4_k(blocks: Bytes) -> Unpacked:
    """scale f16, minimum scale f16, 8 + 8 six-bit factors [12], 4 runs of 32 bytes."""
    return _fields(blocks[:, 16:].reshape(-1, 32), 4).reshape(-1, 256), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    """As Q4_K, with 32 bytes before the nibbles whose bit j is bit 4 of the j-th 32 weights."""
    low = _fields(blocks[:, 48:].reshape(-1, 32), 4).reshape(-1, 256)
    high = _fields(blocks[:, 16:48], 1).reshape(-1, 256)
    return low | high << np.uint8(4), *_k_scales(blocks)


def _k_scales(blocks: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """scale and minimum [blocks, 8]. The 6-bit factors of groups 0-3 are the low bits of bytes 0-3 (scales) and 4-7
    (minimums); groups 4-7 have their low 4 bits in the nibbles of bytes 8-11 and their high 2 bits atop bytes 0-7."""
    scales, minimums, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    factor = np.hstack([scales & 63, low & 15 | scales >> 6 << 4])
    offset = np.hstack([minimums & 63, low >> 4 | minimums >> 6 << 4])
    scale, minimum = _half(blocks, 0).astype(np.float32), _half(blocks, 2).astype(np.float32)
    return scale * factor, minimum * -offset.astype(np.float32)


def _q6_k(blocks: Bytes) -> Unpacked:
    """Two halves of 128 weights: 64 bytes of low nibbles each [128], 32 bytes of high bit pairs each [64]; then 16
    signed factors and the f16 scale."""
    low = _fields(blocks[:, :128].reshape(-1, 64), 4).reshape(-1, 256)
    high = _fields(blocks[:, 128:192].reshape(-1, 32), 2).reshape(-1, 256)
    factor = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return low | high << np.uint8(4), _half(blocks, 208).astype(np.float32) * factor, None


@dataclass(frozen=True, slots=True)
class _Layout:
    unpack: Callable[[Bytes], Unpacked]
    bits: int
    group_size: int
    zero: int
    has_minimum: bool
    scale_dtype: type[np.generic]


LAYOUTS = {
    "Q4_0": _Layout(_q4_0, 4, 32, 8, False, np.float16),
    "Q4_1": _Layout(_q4_1, 4, 32, 0, True, np.float16),
    "Q5_0": _Layout(_q5_0, 5, 32, 16, False, np.float16),
    "Q5_1": _Layout(_q5_1, 5, 32, 0, True, np.float16),
    "Q8_0": _Layout(_q8_0, 8, 32, 128, False, np.float16),
    "Q4_K": _Layout(_q4_k, 4, 32, 0, True, np.float32),
    "Q5_K": _Layout(_q5_k, 5, 32, 0, True, np.float32),
    "Q6_K": _Layout(_q6_k, 6, 16, 32, False, np.float32),
}
