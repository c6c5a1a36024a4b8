"""The tier on disk: a file of slots, each with room for one KV block of all layers."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headway import _native
from headway.config import CacheConfig
from headway.core.batch import BlockTransfer
from headway.errors import ConfigError
from headway.model.packed_folder import DISK_RESERVE_BYTES
from headway.model.progress import format_bytes

BlockMemory = Callable[[int], list[Any]]  # ``Backend.kv_block`` of the pool: a block's bytes, in parts


class BlockFile:
    """Owns a file without a name, which nobody else can open and which is gone when this process ends, however it ends.

    It grows as slots are first used, to at most ``limit_bytes``, whole slots:

        | slot 0: part, part, ... | slot 1: part, part, ... | ...

    What was saved is known by its checksums, which are in memory only: a slot that was damaged, cut off or never saved
    to is not loaded. Raises OSError where such a file cannot be made in ``folder``, which is made if need be.
    """

    def __init__(self, folder: Path, limit_bytes: int, memory: BlockMemory) -> None:
        self._memory = memory
        self.slot_bytes = sum(part.nbytes for part in memory(0))
        self.num_slots = limit_bytes // self.slot_bytes
        self._checksums: dict[int, list[int]] = {}  # by slot
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor, name = tempfile.mkstemp(dir=folder)
        weakref.finalize(self, os.close, self._descriptor)
        os.unlink(name)

    def transfer(self, saves: Iterable[BlockTransfer], loads: Iterable[BlockTransfer]) -> tuple[int, ...]:
        """The saves in their order, then the loads. Returns the slots of those that failed; never raises for one. A
        block whose load failed holds anything."""
        failed = [slot for block_id, slot in saves if not self._save(block_id, slot)]
        failed += [slot for block_id, slot in loads if not self._load(block_id, slot)]
        return tuple(failed)

    def _save(self, block_id: int, slot: int) -> bool:
        self._checksums.pop(slot, None)  # so that a save that fails leaves nothing to load
        parts = self._memory(block_id)
        try:
            written = os.pwritev(self._descriptor, parts, slot * self.slot_bytes)
        except OSError:
            return False
        if written < self.slot_bytes:
            return False
        self._checksums[slot] = _checksums(parts)
        return True

    def _load(self, block_id: int, slot: int) -> bool:
        if slot not in self._checksums:
            return False
        parts = self._memory(block_id)
        try:
            read = os.preadv(self._descriptor, parts, slot * self.slot_bytes)
        except OSError:
            return False
        return read == self.slot_bytes and _checksums(parts) == self._checksums[slot]


def _checksums(parts: list[Any]) -> list[int]:
    return [_native.checksum(part) for part in parts]


def open_block_file(config: CacheConfig, default_folder: Path, memory: BlockMemory) -> BlockFile:
    """As ``cache.disk_bytes`` and ``cache.disk_dir`` ask. ConfigError where no block fits, the folder cannot be written
    or its disk would be filled up."""
    limit = config.disk_bytes
    folder = Path(config.disk_dir).expanduser() if config.disk_dir else default_folder
    try:
        file = BlockFile(folder, limit, memory)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(
            f"cache.disk_dir: no file can be made in {folder} ({error.strerror}): choose another folder, or set "
            "cache.disk_bytes to 0 to keep no blocks on disk"
        ) from error
    if file.num_slots < 1:
        raise ConfigError(
            f"cache.disk_bytes is {limit}: raise it to at least {file.slot_bytes}, which one block of "
            f"{config.block_size} tokens needs, or set it to 0"
        )
    if free - file.num_slots * file.slot_bytes < DISK_RESERVE_BYTES:
        raise ConfigError(
            f"cache.disk_bytes is {limit}: of the {format_bytes(free)} free in {folder} "
            f"{format_bytes(DISK_RESERVE_BYTES)} are left alone: lower it, or choose another folder (cache.disk_dir)"
        )
    return file
