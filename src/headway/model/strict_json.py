"""JSON objects from files that nobody vouches for: bounded in size and depth, no key twice."""

import json
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError

MAX_CONFIG_BYTES = 16 << 20


def read_json(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    return parse_json(read_bytes(path, max_bytes), str(path))


def read_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise CheckpointError(f"{path}: larger than {max_bytes >> 20} MiB, which no sound file of its kind is")
    return data


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """The object in ``data``; CheckpointError when it is not one JSON object, is too deep or has a key twice."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deeply; the file is damaged or hostile") from None
    except ValueError as error:
        raise CheckpointError(f"{where}: not valid JSON: {error}; get a sound copy of the file") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: a JSON object is expected; get a sound copy of the file")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found
