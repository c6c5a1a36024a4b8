import pytest

from headway.core.block_pool import BlockPool


def test_blocks_come_in_a_fixed_order_and_go_to_the_back():
    pool = BlockPool(4)
    assert pool.take(2) == [0, 1]
    pool.release([1])
    assert pool.take(3) == [2, 3, 1]
    assert (pool.num_free, pool.num_used) == (0, 4)


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
    with pytest.raises(ValueError, match="block 1 is free"):
        act(pool, [1])
    pool.check_integrity()


def test_taking_too_many_changes_nothing():
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 free"):
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
