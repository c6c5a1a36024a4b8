"""SHA-256 of what makes a model: the identity that answers name and caches are keyed by."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from headway.errors import CheckpointError


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def files_sha256(paths: Iterable[Path]) -> str:
    """Of one file, its own digest; of several, the digest of the lines ``name digest`` in the order of their names."""
    digests = sorted((path.name, file_sha256(path)) for path in paths)
    if len(digests) == 1:
        return digests[0][1]
    lines = "".join(f"{name} {digest}\n" for name, digest in digests)
    return hashlib.sha256(lines.encode()).hexdigest()
