"""SHA-256 of files, computed once: a record stands for as long as what the system says of the file does."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.errors import DigestMismatch
from headway.model.progress import Progress

CHUNK_BYTES = 1 << 20
# The coarsest clock of a file system in use, FAT's: two changes within it may leave the same times.
CLOCK_STEP_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file of the cache, which Headway alone writes, was when its bytes were last read in full.

    It holds for a copy of the cache too, as in the image of a container: so no more than size and modification time.
    """

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


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells a file's content from any other it had: whoever changes or replaces a file can set its modification
    time back, as ``cp -p`` and archives do, but neither its change time nor its inode."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        facts = path.stat()
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)

    def is_settled(self, now_ns: int) -> bool:
        """A later change will show. Not so right after a change: another could get the same time."""
        return now_ns - self.ctime_ns > CLOCK_STEP_NS


def cached_digest(path: Path, records: Path, progress: Progress, rehash: bool) -> str:
    """The digest of a file anywhere on disk. ``records`` is the folder where what was computed is remembered."""
    path = path.resolve()
    note = records / f"{hashlib.sha256(str(path).encode()).hexdigest()}.json"
    state = FileState.of(path)  # before it is read: a change meanwhile makes the record void rather than wrong
    settled = state.is_settled(time.time_ns())
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(note.read_text())
        if known["state"] == asdict(state) and not rehash:
            return str(known["sha256"])
    sha256 = hash_file(path, progress)
    if settled:
        with suppress(OSError):  # a cache that cannot be written costs time, no more
            write_json(note, {"path": str(path), "state": asdict(state), "sha256": sha256})
    return sha256


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
