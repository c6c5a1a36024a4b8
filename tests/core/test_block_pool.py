import pytest

from headway.core.block_pool import BlockPool


def test_blocks_come_in_a_fixed_order_the_last_to_come_back_first():
    pool = BlockPool(4)
    assert pool.take(2) == [0, 1]
    pool.release([1])
    assert pool.take(3) == [1, 2, 3]
    assert (pool.num_free, pool.num_referenced) == (0, 4)


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go():
    pool = BlockPool(2)
    (block_id,) = pool.take(1)
    pool.share([block_id])
    pool.release([block_id])
    assert (pool.ref_count(block_id), pool.num_free) == (1, 1)
    pool.release([block_id])
    assert (pool.ref_count(block_id), pool.num_free) == (0, 2)
    pool.check_integrity()


@pytest.mark.parametrize("act", [BlockPool.share, BlockPool.release])
def test_a_free_block_can_be_neither_shared_nor_released(act):
    pool = BlockPool(2)
    with pytest.raises(ValueError, match=r"block 1 (is free|has no holder)"):
        act(pool, [1])
    pool.check_integrity()


def test_taking_too_many_changes_nothing():
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 available"):
        pool.take(3)
    assert pool.take(2) == [0, 1]


def test_integrity_check_sees_a_lost_and_a_doubled_block():
    lost = BlockPool(2)
    lost._free.pop()
    doubled = BlockPool(2)
    doubled._free.append(0)
    for pool in (lost, doubled):
        with pytest.raises(RuntimeError):
            pool.check_integrity()


def cached_pool(num_blocks: int, *keys: bytes) -> BlockPool:
    """Blocks 0, 1, .. hold these keys, and nobody holds them."""
    pool = BlockPool(num_blocks)
    taken = pool.take(len(keys))
    for block_id, key in zip(taken, keys, strict=True):
        pool.name(block_id, key)
    pool.release(taken)
    return pool


def test_a_named_block_is_cached_when_its_last_holder_lets_go_and_can_be_had_again():
    pool = cached_pool(3, b"a", b"b")
    assert (pool.num_free, pool.num_cached, pool.num_referenced, pool.num_available) == (1, 2, 0, 3)
    assert (pool.find(b"b"), pool.find(b"c")) == (1, None)
    pool.share([1])
    assert (pool.num_cached, pool.ref_count(1), pool.find(b"b")) == (1, 1, 1)
    pool.check_integrity()


def test_free_blocks_are_taken_first_and_then_the_longest_unused_is_evicted():
    pool = cached_pool(3, b"a", b"b")
    assert pool.take(2) == [2, 0]
    assert (pool.find(b"a"), pool.find(b"b"), pool.num_evictions) == (None, 1, 1)
    pool.check_integrity()


def test_blocks_that_were_found_are_evicted_last():
    pool = cached_pool(8, b"a", b"b", b"c")
    pool.share([0])
    pool.release([0])
    pool.take(5)
    assert pool.take(3) == [1, 2, 0]


def test_the_rank_of_being_found_is_lost_when_too_many_have_it():
    pool = cached_pool(4, b"a", b"b", b"c", b"d")
    for block_id in (0, 1, 2, 3):
        pool.share([block_id])
        pool.release([block_id])
    pool.check_integrity()
    assert pool.take(2) == [0, 1], "the longest unused of the four went back to the others"


def test_a_key_belongs_to_one_block():
    pool = BlockPool(2)
    pool.take(2)
    pool.name(0, b"a")
    pool.name(1, b"a")
    pool.release([0, 1])
    assert (pool.find(b"a"), pool.num_free, pool.num_cached) == (0, 1, 1)
    pool.check_integrity()


def test_a_block_without_a_holder_cannot_be_named():
    with pytest.raises(ValueError, match="block 0 has no holder"):
        BlockPool(1).name(0, b"a")
