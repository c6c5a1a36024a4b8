import pytest

from fakes import make_request
from headway.core.kv_cache_manager import KVCacheManager


def test_a_table_grows_only_when_a_position_needs_it():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    request = make_request("a")
    assert kv.allocate(request, 11) == (0, 1, 2)
    assert kv.allocate(request, 12) == ()
    assert kv.allocate(request, 5) == ()
    assert kv.allocate(request, 13) == (3,)
    assert (kv.num_free_blocks, kv.num_used_blocks) == (4, 4)


def test_what_does_not_fit_changes_nothing():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    first, second = make_request("a"), make_request("b")
    assert kv.allocate(first, 8) == (0, 1)
    assert kv.allocate(second, 5) is None
    assert kv.num_free_blocks == 1
    assert kv.allocate(second, 4) == (2,)
    kv.check_integrity()


def test_headroom_must_stay_free_beside_new_blocks():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    request = make_request("a")
    assert kv.allocate(request, 8, headroom=2) is None
    assert kv.allocate(request, 8, headroom=1) == (0, 1)
    assert kv.allocate(request, 8, headroom=9) == (), "nothing is taken, so nothing is asked of the pool"


def test_free_gives_all_back_and_forgives_a_request_without_blocks():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    request = make_request("a")
    kv.allocate(request, 12)
    kv.free(request)
    kv.free(request)
    assert kv.num_free_blocks == 3
    kv.check_integrity()


def test_integrity_check_sees_a_block_nobody_accounts_for():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    kv.allocate(make_request("a"), 4)
    kv._tables.clear()
    with pytest.raises(RuntimeError, match="block 0: 0 holders, but counted 1"):
        kv.check_integrity()
