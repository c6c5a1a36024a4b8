import pytest

from headway.core.batch import BlockTransfer
from headway.core.block_archive import BlockArchive, Transfers


def saved(*keys: bytes, num_slots: int = 3) -> BlockArchive:
    """An archive whose batches so far saved these, from blocks 0, 1, 2, ..."""
    archive = BlockArchive(num_slots)
    for block_id, key in enumerate(keys):
        archive.save(block_id, key)
    archive.take_transfers()
    return archive


def test_an_evicted_block_is_saved_once():
    archive = BlockArchive(3)
    archive.save(7, b"a")
    archive.save(8, b"b")
    assert archive.take_transfers() == Transfers((BlockTransfer(7, 0), BlockTransfer(8, 1)))
    archive.save(9, b"a")
    assert archive.take_transfers() == Transfers()
    assert (b"a" in archive, b"c" in archive, len(archive), archive.num_saves) == (True, False, 2, 2)


def test_the_slot_that_was_longest_unused_gives_way():
    archive = saved(b"a", b"b", b"c")
    archive.save(9, b"a")  # evicted once more: used
    archive.hold([b"b"])
    archive.load(b"b", 5)
    archive.take_transfers()
    archive.save(9, b"d")
    assert [key in archive for key in (b"a", b"b", b"c", b"d")] == [True, True, False, True]
    archive.check_integrity()


def test_what_is_about_to_be_loaded_is_not_overwritten_before():
    archive = saved(b"a", b"b", num_slots=2)
    archive.hold([b"a", b"b"])
    archive.save(9, b"c")
    assert b"c" not in archive, "no slot may give way, so it is not kept"
    archive.load(b"a", 4)
    archive.load(b"b", 5)
    assert archive.take_transfers() == Transfers((), (BlockTransfer(4, 0), BlockTransfer(5, 1)))
    archive.save(9, b"c")
    assert archive.take_transfers().saves == (BlockTransfer(9, 0),), "a later batch may"


def test_what_a_batch_saves_it_may_load():
    archive = BlockArchive(1)
    archive.save(7, b"a")
    archive.hold([b"a"])
    archive.load(b"a", 2)
    assert archive.take_transfers() == Transfers((BlockTransfer(7, 0),), (BlockTransfer(2, 0),))


def test_only_what_is_held_is_loaded():
    with pytest.raises(ValueError, match="held"):
        saved(b"a").load(b"a", 4)


def test_a_slot_that_failed_is_forgotten_and_free():
    archive = saved(b"a", b"b", num_slots=2)
    archive.forget((0,))
    assert (b"a" in archive, b"b" in archive, archive.num_failures) == (False, True, 1)
    archive.forget((0,))
    archive.check_integrity()
    archive.save(5, b"c")
    assert archive.take_transfers().saves == (BlockTransfer(5, 0),)


def test_integrity_check_sees_a_lost_slot():
    archive = saved(b"a")
    archive._num_begun += 1
    with pytest.raises(RuntimeError, match="free slots"):
        archive.check_integrity()
