"""Reads GGUF files (versions 2 and 3, little-endian), memory-mapped and trusting nothing in them.

    magic "GGUF" | version u32 | num_tensors u64 | num_entries u64
    entries      key string, value type u32, value        string: length u64, UTF-8 bytes
                                                          array: item type u32, count u64, items
    tensors      name string, num_dims u32, dims u64 (columns first), format u32, offset u64 from the start of the data
    padding to ``general.alignment`` (default 32)
    data

Every count and length is held against the bytes that are left before anything is made of it, so a hostile header costs
no more time or memory than its own size. Source: the GGUF specification in the ggml repository (docs/gguf.md).
"""

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import CheckpointError, UnsupportedModel
from headway.model.tensor import FORMATS, StoredTensor, TensorFormat, check_no_overlap, map_file

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 128 << 20  # real ones hold a vocabulary: up to about 30 MB
MAX_ENTRIES = 1 << 16  # metadata keys, and tensors
MAX_ARRAY_LENGTH = 1 << 22
MAX_DIMS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 16


class ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("<u1"),
    ValueType.INT8: np.dtype("<i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

# GGML's numbers for tensor formats. Those that are not in ``FORMATS`` are known by name only, to say so in an error.
_FORMAT_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """``metadata`` holds plain Python values (int, float, bool, str, or a list of one of them); ``types`` the type each
    was declared with. Tensors are views of the mapped file, which stays mapped as long as one of them lives."""

    path: Path
    metadata: dict[str, object]
    types: dict[str, ValueType]
    tensors: dict[str, StoredTensor]


def is_gguf(path: Path) -> bool:
    """By its first bytes, whatever its name. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GGUFFile:
    """Raises CheckpointError for a damaged or hostile file, UnsupportedModel for formats we do not read."""
    data = map_file(path)
    header = _Header(path, data)
    num_tensors, num_entries = _read_preamble(header)
    metadata: dict[str, object] = {}
    types: dict[str, ValueType] = {}
    for _ in range(num_entries):
        key = header.string()
        if not key or key in metadata:
            raise header.error(f"the metadata key {key!r} is empty or there twice")
        types[key] = header.value_type()
        metadata[key] = header.value(types[key])
    infos = [_read_tensor_info(header) for _ in range(num_tensors)]
    alignment = _alignment(header, metadata, types)
    data_start = -(-header.at // alignment) * alignment
    return GGUFFile(path, metadata, types, _place_tensors(header, infos, data_start, alignment))


class _Header:
    """A cursor over the header of a mapped file. Every read is checked against the bytes that are left."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self.at = 0

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {problem} (at byte {self.at}); the file is damaged, get a sound copy of it"
        )

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            limit = "the file ends" if self.end == self.size else f"{MAX_HEADER_BYTES >> 20} MiB pass"
            raise self.error(f"{limit} before the header does")
        start, self.at = self.at, self.at + size
        return self.data[start : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        """A number of things that take at least ``least_bytes`` each."""
        number = self.u64()
        if number > limit or number * least_bytes > self.end - self.at:
            raise self.error(f"it claims {number} {what}: more than fit or than the limit of {limit}")
        return number

    def string(self) -> str:
        size = self.u64()
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise self.error("a string is not UTF-8") from None

    def value_type(self) -> ValueType:
        number = self.u32()
        try:
            return ValueType(number)
        except ValueError:
            raise self.error(f"there is no value type {number}") from None

    def value(self, kind: ValueType) -> object:
        if kind is ValueType.STRING:
            return self.string()
        if kind is not ValueType.ARRAY:
            return self.scalars(kind, 1)[0]
        item = self.value_type()
        if item is ValueType.ARRAY:
            raise self.error("an array of arrays is not supported")
        if item is ValueType.STRING:
            return self.strings(self.count("strings", 8, MAX_ARRAY_LENGTH))
        return self.scalars(item, self.count("values", _SCALARS[item].itemsize, MAX_ARRAY_LENGTH))

    def scalars(self, kind: ValueType, count: int) -> list[object]:
        dtype = _SCALARS[kind]
        values = self.take(count * dtype.itemsize)
        if kind is ValueType.BOOL and values.strip(b"\0\1"):
            raise self.error("a truth value is neither 0 nor 1")
        return np.frombuffer(values, dtype).tolist()

    def strings(self, count: int) -> list[str]:
        """As ``string()`` count times, in one tight loop: a vocabulary has up to a few hundred thousand."""
        length_at = struct.Struct("<Q").unpack_from
        data, at, end = self.data, self.at, self.end
        found = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                start, at = at + 8, at + 8 + length
                if at > end:
                    break
                found.append(data[start:at].decode())
        except (struct.error, UnicodeDecodeError):
            pass
        if len(found) < count:
            raise self.error(f"string {len(found)} of {count} in an array is cut off or not UTF-8")
        self.at = at
        return found


def _read_preamble(header: _Header) -> tuple[int, int]:
    """(number of tensors, number of metadata entries)."""
    if header.take(4) != MAGIC:
        raise CheckpointError(
            f"{header.path}: not a GGUF file (it does not begin with 'GGUF'); for safetensors, name their folder"
        )
    version = header.u32()
    if version and version & 0xFFFF == 0:
        raise UnsupportedModel(f"{header.path}: a big-endian GGUF file; convert it to little-endian")
    if version not in (2, 3):
        raise UnsupportedModel(
            f"{header.path}: GGUF version {version} is not supported, only 2 and 3; convert it again"
        )
    num_tensors = header.u64()
    num_entries = header.count("metadata entries", 13, MAX_ENTRIES)
    if num_tensors > MAX_ENTRIES or num_tensors * 32 > header.end - header.at:
        raise header.error(f"it claims {num_tensors} tensors: more than fit or than the limit of {MAX_ENTRIES}")
    return num_tensors, num_entries


def _alignment(header: _Header, metadata: dict[str, object], types: dict[str, ValueType]) -> int:
    key = "general.alignment"
    alignment = metadata.get(key, 32)
    if types.get(key, ValueType.UINT32) is not ValueType.UINT32 or not isinstance(alignment, int):
        raise header.error(f"{key} is declared {types[key].name}, not UINT32")
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise header.error(f"{key} is {alignment}, not a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}")
    return alignment


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # rows first
    format_number: int
    offset: int


def _read_tensor_info(header: _Header) -> _TensorInfo:
    name = header.string()
    num_dims = header.u32()
    if not 1 <= num_dims <= MAX_DIMS:
        raise header.error(f"tensor {name!r} has {num_dims} dimensions, not 1 to {MAX_DIMS}")
    dims = struct.unpack(f"<{num_dims}Q", header.take(8 * num_dims))
    if 0 in dims:
        raise header.error(f"tensor {name!r} is empty: its dimensions are {dims}")
    return _TensorInfo(name, dims[::-1], header.u32(), header.u64())


def _format(header: _Header, info: _TensorInfo) -> TensorFormat:
    name = _FORMAT_NAMES.get(info.format_number, f"number {info.format_number}")
    if name not in FORMATS:
        raise UnsupportedModel(
            f"{header.path}: tensor {info.name!r} has the format {name}; known are {', '.join(FORMATS)}. Use a copy of "
            "the model in one of those"
        )
    return FORMATS[name]


def _place_tensors(
    header: _Header, infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, StoredTensor]:
    """Checks that each tensor lies aligned and whole within the file, clear of the others."""
    data = np.frombuffer(header.data, np.uint8)
    tensors: dict[str, StoredTensor] = {}
    extents = []
    for info in infos:
        if info.name in tensors:
            raise header.error(f"tensor {info.name!r} is there twice")
        format = _format(header, info)
        size = format.num_bytes(info.shape)
        if size is None:
            raise header.error(
                f"tensor {info.name!r} {info.shape}: a row is not a whole number of {format.name} blocks"
            )
        start = data_start + info.offset
        if info.offset % alignment or start + size > header.size:
            raise header.error(
                f"tensor {info.name!r} is not aligned to {alignment} or not inside the file: bytes {start} to "
                f"{start + size} of {header.size}"
            )
        extents.append((start, start + size, info.name))
        tensors[info.name] = StoredTensor(info.name, info.shape, format, data[start : start + size], str(header.path))
    check_no_overlap(str(header.path), extents)
    return tensors
