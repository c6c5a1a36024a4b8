"""A file of packed weights: what the native backend makes of a model's matrices, to be mapped at the next start.

    preamble   magic, start and length of the table, SHA-256 of the table; zeros up to byte 4096
    weights    in the order of reading, each from a multiple of 64 on: packed matrices, and vectors as float32
    table      JSON: the file's key and, for each weight, where it lies, its checksum and how it is packed

The preamble is written last, and everything is under a checksum that opening the file compares: one that was cut off,
damaged or made for something else is an error, never a wrong weight.

The file is mapped rather than read: mapped pages are the page cache's own, so nothing is copied, nothing is in memory
twice and processes share it. Where the page cache uses large folios (Linux 6.18 with ext4) kernels read them as fast as
anonymous huge pages, within 2 %; with pages of 4 KiB, as anonymous memory without huge pages has, they read 600 MB 13 %
slower.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway import _native
from headway.ops.contract import Float32
from headway.ops.weights import PackedMatrix

MAGIC = b"headway packed 1"
_PREAMBLE = struct.Struct("<16sQQ32s")
_DATA_START = 4096
_ALIGNMENT = 64


class DamagedFile(Exception):
    """Not the file of packed weights that was expected; the message says in what."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """``packing`` is a native weight's own description of its bytes; None: float32 numbers."""

    start: int
    size: int
    checksum: int
    packing: list[int] | None


def write_packed(path: Path, key: str, weights: Iterable[tuple[str, Any]]) -> None:
    """``weights``, each a native weight or a float32 vector, one by one: if they are made lazily, no two are in
    memory at a time."""
    entries: dict[str, Any] = {}
    with path.open("wb") as file:
        file.write(bytes(_DATA_START))
        for name, value in weights:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            data, packing = _packed(value)
            entries[name] = asdict(_Entry(file.tell(), data.nbytes, _native.checksum(data), packing))
            file.write(data)
        start = file.tell()
        table = json.dumps({"key": key, "weights": entries}).encode()
        file.write(table)
        file.seek(0)
        file.write(_PREAMBLE.pack(MAGIC, start, len(table), hashlib.sha256(table).digest()))


def _packed(value: Any) -> tuple[Any, list[int] | None]:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, np.float32).view(np.uint8), None
    return value.bytes, value.description


def read_packed(path: Path, key: str, threads: int) -> dict[str, PackedMatrix | Float32]:
    """The weights by name, where they lie in the mapped file, which must stay as it is while one of them is in use.

    Reads all of it, on ``threads`` threads, to compare checksums. Raises OSError, or ``DamagedFile`` for what is not a
    whole and sound file written with this ``key``.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _DATA_START:
            raise DamagedFile("it is cut off")
        memory = _native.Memory.of_file(file.fileno(), size)
    entries = _read_table(memory.bytes, key)
    with ThreadPoolExecutor(threads) as pool:
        sound = list(pool.map(lambda entry: _is_sound(memory.bytes, entry), entries.values()))
    if not all(sound):
        raise DamagedFile(f"the checksum of {sound.count(False)} weights is wrong")
    try:
        return {name: _loaded(memory, entry) for name, entry in entries.items()}
    except ValueError as error:
        raise DamagedFile(f"a weight of it cannot be: {error}") from error


def _read_table(data: Any, key: str) -> dict[str, _Entry]:
    magic, start, size, digest = _PREAMBLE.unpack_from(data)
    table = bytes(data[start : start + size])
    if magic != MAGIC or start + size != len(data) or hashlib.sha256(table).digest() != digest:
        raise DamagedFile("its table is not whole")
    try:
        found = json.loads(table)
        entries = {name: _Entry(**fields) for name, fields in found["weights"].items()}
        if found["key"] == key:
            return entries
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile("its table is not one of this version") from error
    raise DamagedFile("it was made for something else")


def _is_sound(data: Any, entry: _Entry) -> bool:
    checksum: int = _native.checksum(data[entry.start : entry.start + entry.size])
    return checksum == entry.checksum


def _loaded(memory: Any, entry: _Entry) -> PackedMatrix | Float32:
    if entry.packing is None:
        values: Float32 = memory.bytes[entry.start : entry.start + entry.size].view(np.float32)
        return values
    weight = _native.Weight(entry.packing, memory, entry.start)
    return PackedMatrix(weight, weight.shape)
