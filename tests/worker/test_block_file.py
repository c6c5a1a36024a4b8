"""Blocks in a file: what comes back is what was saved, or nothing; and what a person is told when there can be none."""

import gc
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headway.config import CacheConfig
from headway.core.batch import BlockTransfer
from headway.errors import ConfigError
from headway.model import packed_folder
from headway.ops.contract import KVLayout
from headway.ops.native import NativeBackend
from headway.ops.reference import ReferenceBackend
from headway.worker.block_file import BlockFile, open_block_file

NUM_BLOCKS, NUM_LAYERS = 4, 3
LAYOUT = KVLayout(num_kv_heads=2, head_dim=16, num_blocks=NUM_BLOCKS, block_size=16, dtype="bf16")
BLOCK_BYTES = NUM_LAYERS * LAYOUT.bytes_per_block


@pytest.fixture(params=["native", "reference"])
def memory(request):
    """A pool whose blocks hold different noise."""
    backend = NativeBackend(1) if request.param == "native" else ReferenceBackend()
    memory = partial(backend.kv_block, backend.new_kv_cache(LAYOUT, NUM_LAYERS))
    for block_id in range(NUM_BLOCKS):
        fill(memory, block_id, seed=block_id)
    return memory


def fill(memory, block_id, seed):
    rng = np.random.default_rng(seed)
    for part in memory(block_id):
        part[:] = rng.integers(0, 256, part.size, np.uint8)


def content(memory, block_id):
    return b"".join(part.tobytes() for part in memory(block_id))


def new_file(folder, memory, num_slots=3):
    return BlockFile(folder, num_slots * sum(part.nbytes for part in memory(0)), memory)


def test_what_is_saved_comes_back_in_another_block_and_touches_no_other(tmp_path, memory):
    file = new_file(tmp_path, memory)
    before = [content(memory, block_id) for block_id in range(NUM_BLOCKS)]
    assert len(set(before)) == NUM_BLOCKS and len(before[0]) == file.slot_bytes
    assert file.transfer([BlockTransfer(0, 2), BlockTransfer(1, 0)], []) == ()
    fill(memory, 0, seed=9)
    fill(memory, 1, seed=8)
    assert file.transfer([], [BlockTransfer(3, 2), BlockTransfer(1, 0)]) == ()
    assert [content(memory, block_id) for block_id in (1, 2, 3)] == [before[1], before[2], before[0]]


def test_saves_come_before_loads(tmp_path, memory):
    file = new_file(tmp_path, memory)
    before = content(memory, 0)
    file.transfer([BlockTransfer(0, 0)], [])
    old, new = content(memory, 1), before
    assert file.transfer([BlockTransfer(1, 1)], [BlockTransfer(1, 0), BlockTransfer(2, 1)]) == ()
    assert (content(memory, 1), content(memory, 2)) == (new, old)


def test_of_two_saves_to_a_slot_the_last_counts(tmp_path, memory):
    file = new_file(tmp_path, memory)
    assert file.transfer([BlockTransfer(0, 0), BlockTransfer(1, 0)], [BlockTransfer(2, 0)]) == ()
    assert content(memory, 2) == content(memory, 1)


def test_nothing_is_left_in_the_folder_not_even_while_it_is_in_use(tmp_path, memory):
    file = new_file(tmp_path / "made" / "for it", memory)
    file.transfer([BlockTransfer(0, 0)], [])
    assert list((tmp_path / "made" / "for it").iterdir()) == []


def test_the_file_is_closed_with_its_owner(tmp_path, memory):
    file = new_file(tmp_path, memory)
    descriptor = file._descriptor
    del file
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_it_has_whole_slots_within_its_bytes(tmp_path, memory):
    slot_bytes = new_file(tmp_path, memory).slot_bytes
    file = BlockFile(tmp_path, 3 * slot_bytes - 1, memory)
    assert file.num_slots == 2
    file.transfer([BlockTransfer(0, 0), BlockTransfer(1, 1)], [])
    assert os.fstat(file._descriptor).st_size == 2 * slot_bytes


def flip_a_bit(file):
    at = file.slot_bytes + 100
    (byte,) = os.pread(file._descriptor, 1, at)
    os.pwrite(file._descriptor, bytes([byte ^ 1]), at)


DAMAGE = {
    "a bit flipped": flip_a_bit,
    "cut off": lambda file: os.ftruncate(file._descriptor, 2 * file.slot_bytes - 1),
    "cut off before": lambda file: os.ftruncate(file._descriptor, file.slot_bytes),
    "cannot be read": lambda file: os.dup2(os.open(os.devnull, os.O_WRONLY), file._descriptor),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_slot_is_not_loaded_and_can_be_saved_to_again(tmp_path, memory, damage):
    file = new_file(tmp_path, memory)
    file.transfer([BlockTransfer(0, 0), BlockTransfer(1, 1)], [])
    DAMAGE[damage](file)
    assert file.transfer([], [BlockTransfer(3, 1)]) == (1,)
    if damage != "cannot be read":
        assert file.transfer([BlockTransfer(2, 1)], [BlockTransfer(3, 1), BlockTransfer(1, 0)]) == ()
        assert content(memory, 3) == content(memory, 2)


def test_a_slot_that_was_never_saved_to_is_not_loaded(tmp_path, memory):
    assert new_file(tmp_path, memory).transfer([], [BlockTransfer(0, 0)]) == (0,)


def test_a_save_that_fails_leaves_nothing_to_load(tmp_path, memory):
    file = new_file(tmp_path, memory)
    file.transfer([BlockTransfer(0, 0)], [])
    kept, only_read = os.dup(file._descriptor), os.open(os.devnull, os.O_RDONLY)
    os.dup2(only_read, file._descriptor)
    assert file.transfer([BlockTransfer(1, 0)], []) == (0,)
    os.dup2(kept, file._descriptor)
    assert file.transfer([], [BlockTransfer(2, 0)]) == (0,), "what it held before is another key's"
    os.close(kept)
    os.close(only_read)


class TestSettings:
    def open(self, memory, default_folder, **cache):
        return open_block_file(CacheConfig(**cache), default_folder, memory)

    def test_the_folder_is_the_chosen_one_or_the_cache(self, tmp_path, memory):
        self.open(memory, tmp_path / "cache", disk_bytes=1 << 20)
        self.open(memory, tmp_path / "other", disk_bytes=1 << 20, disk_dir=str(tmp_path / "chosen"))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "chosen"]

    def test_at_least_one_block_must_fit(self, tmp_path, memory):
        with pytest.raises(ConfigError, match=r"cache\.disk_bytes is 100: raise it to at least \d+"):
            self.open(memory, tmp_path, disk_bytes=100)

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path, memory):
        (tmp_path / "file").write_text("")
        for folder in (tmp_path / "file", Path("/proc")):
            with pytest.raises(ConfigError, match=rf"cache\.disk_dir: no file can be made in {folder}"):
                self.open(memory, tmp_path, disk_bytes=1 << 20, disk_dir=str(folder))

    def test_the_disk_is_not_filled_up(self, tmp_path, memory, monkeypatch):
        with pytest.raises(ConfigError, match=r"cache\.disk_bytes is \d+: of the .* free in .* 1.* are left alone"):
            self.open(memory, tmp_path, disk_bytes=1 << 60)
        monkeypatch.setattr("headway.worker.block_file.DISK_RESERVE_BYTES", 1 << 60)
        with pytest.raises(ConfigError, match="lower it, or choose another folder"):
            self.open(memory, tmp_path, disk_bytes=1 << 20)
        assert packed_folder.DISK_RESERVE_BYTES == 1 << 30
