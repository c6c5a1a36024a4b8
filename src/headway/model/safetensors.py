"""Reads safetensors files, memory-mapped and trusting nothing in them.

    header length u64, little-endian | header: JSON | data

The header maps each tensor's name to ``{"dtype", "shape", "data_offsets": [start, end]}``, offsets within the data. As
in the format's own specification, tensors must cover the data exactly: no holes, no overlap, nothing after.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headway.model.strict_json import parse_json, read_json
from headway.model.tensor import FORMATS, StoredTensor, check_no_overlap, map_file

MAX_HEADER_BYTES = 16 << 20  # the largest models have about 1 MB a file
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16")
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


def read_safetensors_folder(folder: Path) -> dict[str, StoredTensor]:
    """Tensors by name, from one file or from shards; the index and the shards must name the same tensors."""
    if (folder / SINGLE_FILE).exists():
        return read_safetensors(folder / SINGLE_FILE)
    if not (folder / INDEX_FILE).exists():
        raise ModelNotFound(
            f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there. Checkpoints are read from safetensors or GGUF "
            "only; convert others (pickled .bin or .pth files are never opened)"
        )
    tensors: dict[str, StoredTensor] = {}
    for file, names in _shards(folder / INDEX_FILE).items():
        shard = read_safetensors(folder / file)
        if shard.keys() != names:
            name = min(shard.keys() ^ names)
            place = f"is in {file} but not listed for it" if name in shard else f"is listed for {file} but not in it"
            raise CheckpointError(f"{folder / INDEX_FILE}: tensor {name!r} {place}; get a sound copy of the folder")
        tensors |= shard
    return tensors


def _shards(index: Path) -> dict[str, set[str]]:
    """File name -> the names of its tensors. A file name is a plain name: it cannot lead out of the folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: there is no weight_map; get a sound copy of the folder")
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
            raise CheckpointError(f"{index}: {file!r} is not the plain name of a .safetensors file in this folder")
        shards.setdefault(file, set()).add(name)
    return shards


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Raises CheckpointError for a damaged or hostile file, UnsupportedModel for a dtype we do not read."""
    mapped = map_file(path)
    size = int.from_bytes(mapped[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(mapped) - 8):
        raise CheckpointError(
            f"{path}: it claims a header of {size} bytes, in a file of {len(mapped)}; the file is cut off or damaged"
        )
    header = parse_json(mapped[8 : 8 + size], str(path))
    header.pop("__metadata__", None)
    data = np.frombuffer(mapped, np.uint8)[8 + size :]
    tensors, extents = {}, []
    for name, entry in header.items():
        start, end, tensor = _tensor(path, name, entry, data)
        tensors[name] = tensor
        extents.append((start, end, name))
    check_no_overlap(str(path), extents)
    covered = sum(end - start for start, end, _ in extents)
    if covered != len(data):
        raise CheckpointError(
            f"{path}: its tensors take {covered} bytes but {len(data)} follow the header; the file is damaged"
        )
    return tensors


def _tensor(path: Path, name: str, entry: Any, data: np.ndarray) -> tuple[int, int, StoredTensor]:
    """(start, end, the tensor): an entry of the header, checked against the data."""
    shape, offsets, dtype = _entry_fields(path, name, entry)
    if dtype not in _DTYPES:
        raise UnsupportedModel(
            f"{path}: tensor {name!r} has the dtype {dtype!r}; only {', '.join(_DTYPES)} are read. Use a copy of the "
            "model in one of those, or a quantised GGUF"
        )
    start, end = offsets
    if end - start != FORMATS[dtype].num_bytes(shape) or end > len(data):
        raise CheckpointError(
            f"{path}: tensor {name!r}: {dtype} of shape {list(shape)} cannot be bytes {start} to {end} of {len(data)}; "
            "the file is cut off or damaged"
        )
    return start, end, StoredTensor(name, shape, FORMATS[dtype], data[start:end], str(path))


def _entry_fields(path: Path, name: str, entry: Any) -> tuple[tuple[int, ...], tuple[int, int], object]:
    """(shape, (start, end), dtype)"""
    if isinstance(entry, Mapping) and entry.keys() == {"dtype", "shape", "data_offsets"}:
        shape, offsets = entry["shape"], entry["data_offsets"]
        if _is_counts(shape) and len(shape) <= 8 and _is_counts(offsets) and len(offsets) == 2:
            return tuple(shape), (offsets[0], offsets[1]), entry["dtype"]
    raise CheckpointError(f"{path}: the header's entry for tensor {name!r} is malformed; get a sound copy of the file")


def _is_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)
