"""Packed weights in a file: what comes back is what was packed, or an error."""

import hashlib
import json
import random
import struct

import numpy as np
import pytest

from headway import _native
from headway.ops.native import pack
from headway.ops.packed_file import MAGIC, DamagedFile, read_packed, write_packed
from headway.ops.weights import DenseMatrix, GroupQuantized, PackedMatrix

N, K = 40, 64  # two and a half blocks of outputs


def values(high, *shape):
    """Whole numbers that no two places near each other share: the same on every machine."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.int64) * 2654435761 % 4093 % high).reshape(shape)


def quantized(bits, group, zero=0, minimum=False, wide=False):
    dtype = np.float32 if wide else np.float16
    scale = (values(100, N, K // group) + 1).astype(dtype)
    low = -values(50, N, K // group).astype(dtype) if minimum else None
    return GroupQuantized(values(2**bits, N, K).astype(np.uint8), scale, low, bits, group, zero, "test")


MATRICES = {
    "f32": DenseMatrix(values(1000, N, K).astype(np.float32)),
    "f16": DenseMatrix(values(1000, N, K).astype(np.float16)),
    "bf16": DenseMatrix(values(1000, N, K).astype(np.uint16), is_bf16=True),
    "Q4_0": quantized(4, 32, zero=8),
    "Q4_1": quantized(4, 32, minimum=True),
    "Q5_1": quantized(5, 32, minimum=True),
    "Q8_0": quantized(8, 32, zero=128),
    "Q4_K": quantized(4, 32, minimum=True, wide=True),
    "Q6_K": quantized(6, 16, zero=32, wide=True),
}
PACKED = {name: pack(matrix) for name, matrix in MATRICES.items()} | {
    "Q4_0, fixed point": pack(MATRICES["Q4_0"], fixed_point=True),
    "Q4_1, fixed point": pack(MATRICES["Q4_1"], fixed_point=True),
    "Q4_1, fixed point, table": pack(MATRICES["Q4_1"], fixed_point=True, is_table=True),
    "Q4_K, fixed point": pack(MATRICES["Q4_K"], fixed_point=True),
}
VECTORS = {"norm": np.arange(7, dtype=np.float32), "bias": np.ones(K, np.float32)}
KEY = "which model, packed how"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "packed"
    write_packed(path, KEY, (PACKED | VECTORS).items())
    return path


def read(path, key=KEY):
    return read_packed(path, key, threads=2)


def assert_is_what_was_packed(found):
    assert list(found) == [*PACKED, *VECTORS]
    for name, expected in PACKED.items():
        assert isinstance(found[name], PackedMatrix) and found[name].shape == (N, K)
        assert found[name].handle.description == expected.description, name
        assert np.array_equal(found[name].handle.bytes, expected.bytes), name
    for name, vector in VECTORS.items():
        assert np.array_equal(found[name], vector), name


def test_what_is_read_is_what_was_packed(file):
    assert_is_what_was_packed(read(file))


def test_weights_outlive_the_name_of_their_file(file):
    found = read(file)
    file.unlink()
    assert_is_what_was_packed(found)


def test_mapped_weights_cannot_be_written(file):
    found = read(file)
    for data in (found["f32"].handle.bytes, found["norm"]):
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1


def test_a_file_made_for_something_else_is_refused(file):
    with pytest.raises(DamagedFile, match="something else"):
        read(file, "another model")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_a_write_that_was_broken_off_leaves_no_sound_file(tmp_path):
    def broken_off():
        yield "f32", PACKED["f32"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_packed(tmp_path / "packed", KEY, broken_off())
    with pytest.raises(DamagedFile):
        read(tmp_path / "packed")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 4097, 20000, -1])
def test_a_file_that_was_cut_off_is_refused(file, size):
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DamagedFile):
        read(file)


@pytest.mark.parametrize(
    "change",
    {
        "longer": lambda data: data + b"x",
        "zeros": lambda data: bytes(len(data)),
        "another version": lambda data: data.replace(b"headway packed 1", b"headway packed 2"),
        "a weight of zeros": lambda data: data[:4096] + bytes(4096) + data[8192:],
        "two weights swapped": lambda data: data[:4096] + data[8192:12288] + data[4096:8192] + data[12288:],
    }.values(),
)
def test_a_changed_file_is_refused(file, change):
    data = file.read_bytes()
    file.write_bytes(change(data))
    assert file.read_bytes() != data
    with pytest.raises(DamagedFile):
        read(file)


def entry(**changes):
    return {"start": 4096, "size": 64, "checksum": _native.checksum(np.zeros(64, np.uint8)), "packing": None} | changes


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"key": KEY},
        {"key": KEY, "weights": 1},
        {"weights": {}},
        {"key": KEY, "weights": {"w": {}}},
        {"key": KEY, "weights": {"w": entry(later=1)}},
        {"key": KEY, "weights": {"w": entry(start=1 << 40)}},
        {"key": KEY, "weights": {"w": entry(packing=[])}},
        {"key": KEY, "weights": {"w": entry(packing=[0, 16, 16, 0, 0, 0, 0])}},  # more bytes than there are
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path, table):
    text = json.dumps(table).encode()
    preamble = struct.pack("<16sQQ32s", MAGIC, 4160, len(text), hashlib.sha256(text).digest())
    (tmp_path / "packed").write_bytes(preamble.ljust(4160, b"\0") + text)
    with pytest.raises(DamagedFile):
        read(tmp_path / "packed")


@pytest.mark.parametrize("seed", range(300))
def test_no_flipped_bit_changes_a_weight(file, seed):
    """It is found out, or it lies between weights, where nobody reads."""
    data = bytearray(file.read_bytes())
    at = random.Random(seed).randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    file.write_bytes(data)
    try:
        found = read(file)
    except DamagedFile:
        return
    assert_is_what_was_packed(found)


class TestChecksum:
    def test_every_bit_counts(self):
        data = np.frombuffer(random.Random(0).randbytes(100), np.uint8).copy()
        seen = {_native.checksum(data)}
        for bit in range(800):
            data[bit // 8] ^= 1 << bit % 8
            seen.add(_native.checksum(data))
            data[bit // 8] ^= 1 << bit % 8
        assert len(seen) == 801

    def test_the_size_counts(self):
        assert len({_native.checksum(np.zeros(size, np.uint8)) for size in range(200)}) == 200

    def test_the_order_counts(self):
        data = np.arange(256, dtype=np.uint8)
        assert _native.checksum(data) != _native.checksum(np.roll(data, 32))
        assert _native.checksum(data) != _native.checksum(np.roll(data, 8))


@pytest.mark.parametrize(
    ("description", "offset"),
    [
        ([], 0),
        ([9, N, K, 0, 0, 0, 0], 0),  # no such format
        ([0, -N, K, 0, 0, 0, 0], 0),
        ([0, 1 << 20, 1 << 10, 0, 0, 0, 0], 0),  # larger than its memory
        ([0, N, K, 0, 0, 0, 0], 64),  # ends after its memory
        ([0, N, K - 1, 0, 0, 0, 0], 0),
        ([0, N // 2, K, 0, 0, 0, 0], 32),  # not aligned
        ([0, N, K, 32, 0, 0, 0], 0),  # scales of floats
        ([3, N, K, 0, 0, 0, 0], 0),  # integers without scales
        ([3, N, K, 16, 0, 0, 0], 0),
        ([4, N, K, 32, 128, 0, 1], 0),
        ([4, N, K // 2, 32, 128, 0, 0, 1], 0),  # fixed point, and inputs no multiple of 64
        ([3, N, K // 2, 32, 8, 0, 0, 1], 0),
        ([0, N, K, 0, 0, 0, 0, 1], 0),
    ],
)
def test_a_weight_that_cannot_be_is_refused(tmp_path, description, offset):
    (tmp_path / "memory").write_bytes(bytes(48 * K * 4))
    with (tmp_path / "memory").open("rb") as file:
        memory = _native.Memory.of_file(file.fileno(), 48 * K * 4)
    assert _native.Weight([0, N, K, 0, 0, 0, 0, 0, 0], memory, 0).shape == (N, K)
    with pytest.raises(ValueError):
        _native.Weight(description + [0] * (9 - len(description)) if description else [], memory, offset)


LAYOUT = {
    "f32": "a05429b7fd0de35c",
    "f16": "1ec996bcb3f21c59",
    "bf16": "87cdd4d5b2870f6c",
    "Q4_0": "2cc0baeedc99e830",
    "Q4_1": "b9d9b55e28d64d6a",
    "Q5_1": "e5bfbad03e9a5bc3",
    "Q8_0": "0fafbbe66412b7dc",
    "Q4_K": "1fdac3e73271f773",
    "Q6_K": "01c5418922842e87",
    "Q4_0, fixed point": "24216fbc8b8a19be",
    "Q4_1, fixed point": "51281ce4ce4172aa",
    "Q4_1, fixed point, table": "cb9c113cc048a98b",
    "Q4_K, fixed point": "51281ce4ce4172aa",
}


def test_the_layout_is_the_one_its_number_says():
    """Files that were written with a number are read by every version that has it. Where this fails, the layout has
    changed: raise kPackedLayout in native/types.hpp, and write here what is now."""
    found = {name: hashlib.sha256(weight.bytes).hexdigest()[:16] for name, weight in PACKED.items()}
    assert (_native.PACKED_LAYOUT, found) == (2, LAYOUT)
