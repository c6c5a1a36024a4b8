"""Where files of packed weights are kept: a folder of the cache that may be emptied at any time, to be filled again.

packed/<digest of the model>.<key>.weights   key: what else their bytes depend on
"""

import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from headway.model.progress import Progress, bytes_under, format_bytes
from headway.model.store import ModelStore

# Stays free whatever is written here: a full disk is worse than a slow start.
DISK_RESERVE_BYTES = 1 << 30


class NotKept(Exception):
    """A file may not be kept; the message says why, with the numbers."""


class PackedFolder:
    """Owns the folder. Its files together stay within ``limit_bytes``: those not used for longest give way."""

    def __init__(self, store: ModelStore, limit_bytes: int = 0) -> None:
        self._store = store
        self._path = store.root / "packed"
        self._limit_bytes = limit_bytes

    def file(self, digest: str, key: str) -> Path:
        return self._path / f"{digest}.{key}.weights"

    def lock(self, progress: Progress) -> AbstractContextManager[None]:
        """Held by whoever writes here: one at a time, so that the limit holds and no model is packed twice at once."""
        return self._store.lock("packed weights", progress)

    def used(self, file: Path) -> None:
        """Notes that it was used now. A folder that cannot be written loses only its order."""
        with suppress(OSError):
            file.touch()

    def require_room(self, needed: int) -> None:
        """Raises ``NotKept`` where a file of that many bytes could not be kept."""
        if needed > self._limit_bytes:
            raise NotKept(
                f"they may take {format_bytes(needed)}, and model.packed_cache_bytes is {self._limit_bytes}: raise it, "
                "or set it to 0 to keep none"
            )
        self._path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._path).free
        if free - needed < DISK_RESERVE_BYTES:
            raise NotKept(
                f"they may take {format_bytes(needed)}, and of the {format_bytes(free)} free in {self._path} "
                f"{format_bytes(DISK_RESERVE_BYTES)} are left alone: free some space"
            )

    def make_room(self, needed: int) -> None:
        """Removes files until ``needed`` more bytes fit within the limit. Call under the lock."""
        newest_first = sorted(
            self._path.glob("*.weights"), key=lambda file: (file.stat().st_mtime_ns, file.name), reverse=True
        )
        total = needed
        for file in newest_first:
            total += file.stat().st_size
            if total > self._limit_bytes:
                file.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """What a process that was killed had begun to write. Call under the lock."""
        for file in self._path.glob(".*.tmp"):
            file.unlink(missing_ok=True)

    def remove(self, digest: str) -> int:
        """Deletes a model's files, and returns the bytes that were in them."""
        freed = 0
        for file in self._path.glob(f"{digest}.*.weights"):
            freed += bytes_under(file)
            file.unlink(missing_ok=True)
        return freed

    @property
    def size(self) -> int:
        return bytes_under(self._path)
