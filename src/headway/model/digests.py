"""SHA-256 of files, computed once: a record stands for as long as the file's size and modification time do."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.errors import DigestMismatch
from headway.model.progress import Progress

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was when its bytes were last read in full."""

    sha256: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path, sha256: str) -> "FileRecord":
        facts = path.stat()
        return cls(sha256, facts.st_size, facts.st_mtime_ns)

    def still_describes(self, path: Path) -> bool:
        """False also when the file is gone."""
        try:
            facts = path.stat()
        except OSError:
            return False
        return (facts.st_size, facts.st_mtime_ns) == (self.size, self.mtime_ns)


def hash_file(path: Path, progress: Progress) -> str:
    """Says nothing about a small file: it is done before anyone could look."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if size > CHUNK_BYTES:
                progress(f"verifying {path.name}", file.tell(), size)
    return digest.hexdigest()


def check_digest(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise DigestMismatch(
            f"{what} is not the file that was pinned and was not kept: expected sha256 {expected}, got {actual}. "
            "Fetch it again; if it happens twice, the index or mirror serves another file"
        )


def combined_digest(sha256_by_name: dict[str, str]) -> str:
    """One file: its own digest. Several: the digest of their list, as ``sha256sum FILES | sha256sum`` prints it."""
    if len(sha256_by_name) == 1:
        return next(iter(sha256_by_name.values()))
    lines = "".join(f"{sha256_by_name[name]}  {name}\n" for name in sorted(sha256_by_name))
    return hashlib.sha256(lines.encode()).hexdigest()


def cached_digest(path: Path, records: Path, progress: Progress, rehash: bool) -> str:
    """The digest of a file anywhere on disk. ``records`` is the folder where what was computed is remembered."""
    path = path.resolve()
    note = records / f"{hashlib.sha256(str(path).encode()).hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError):
        record = FileRecord(**json.loads(note.read_text())["record"])
        if record.still_describes(path) and not rehash:
            return record.sha256
    record = record_of(path, progress)
    with suppress(OSError):  # a cache that cannot be written costs time, no more
        write_json(note, {"path": str(path), "record": asdict(record)})
    return record.sha256


def record_of(path: Path, progress: Progress) -> FileRecord:
    """Taken before the file is read, so that a change meanwhile makes the record void rather than wrong."""
    before = FileRecord.of(path, "")
    return FileRecord(hash_file(path, progress), before.size, before.mtime_ns)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(json.dumps(value, indent=1) + "\n"))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """The file appears under its name whole and on disk, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        write(temporary)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Flushes ``temporary`` to disk and renames it to ``path`` (same folder), replacing what was there."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
