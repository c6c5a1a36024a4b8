import pytest

from fakes import make_request
from headway.core.kv_cache_manager import Grant, KVCacheManager
from headway.core.request import Request, RequestClass, SamplingParams


def request_of(request_id: str, token_ids, salt: str = "") -> Request:
    return Request(request_id, tuple(token_ids), SamplingParams(), cache_salt=salt)


def computed(kv: KVCacheManager, request: Request, num_tokens: int | None = None) -> tuple[int, ...]:
    """The request's blocks, after all its tokens were given room and computed."""
    num_tokens = num_tokens or request.num_tokens
    grant = kv.allocate(request, num_tokens)
    assert grant is not None
    kv.confirm(request, kv.table(request), num_tokens)
    return grant.block_ids


def test_a_table_grows_only_when_a_position_needs_it():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    request = make_request("a")
    assert kv.allocate(request, 11) == Grant((0, 1, 2))
    assert kv.allocate(request, 12) == Grant(())
    assert kv.allocate(request, 5) == Grant(())
    assert kv.allocate(request, 13) == Grant((3,))
    assert (kv.num_available_blocks, kv.num_used_blocks) == (4, 4)


def test_what_does_not_fit_changes_nothing():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    first, second = make_request("a"), make_request("b")
    assert kv.allocate(first, 8) == Grant((0, 1))
    assert kv.allocate(second, 5) is None
    assert kv.num_available_blocks == 1
    assert kv.allocate(second, 4) == Grant((2,))
    kv.check_integrity()


def test_headroom_must_stay_free_beside_new_blocks():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    request = make_request("a")
    assert kv.allocate(request, 8, headroom=2) is None
    assert kv.allocate(request, 8, headroom=1) == Grant((0, 1))
    assert kv.allocate(request, 8, headroom=9) == Grant(()), "nothing is taken, so nothing is asked of the pool"


def test_free_gives_all_back_and_forgives_a_request_without_blocks():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    request = make_request("a")
    kv.allocate(request, 12)
    kv.free(request)
    kv.free(request)
    assert kv.num_available_blocks == 3
    kv.check_integrity()


def test_integrity_check_sees_a_block_nobody_accounts_for():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    kv.allocate(make_request("a"), 4)
    kv._tables.clear()
    with pytest.raises(RuntimeError, match="block 0: 0 holders, but counted 1"):
        kv.check_integrity()


def test_a_request_that_begins_alike_is_given_the_blocks_that_are_full_and_computed():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    first, second = request_of("a", range(11)), request_of("b", [*range(8), 50, 51])
    assert computed(kv, first) == (0, 1, 2)
    assert kv.num_cached_tokens(second) == 8
    assert kv.allocate(second, 10) == Grant((0, 1, 3), num_cached_tokens=8)
    assert kv.num_used_blocks == 4, "two of them are held twice"
    kv.free(first)
    assert (kv.num_used_blocks, kv.num_cached_blocks) == (3, 0)
    kv.free(second)
    assert (kv.num_used_blocks, kv.num_cached_blocks, kv.num_available_blocks) == (0, 2, 8)
    kv.check_integrity()


def test_the_last_token_is_always_computed():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    computed(kv, request_of("a", range(8)))
    assert kv.num_cached_tokens(request_of("b", range(8))) == 4
    assert kv.num_cached_tokens(request_of("c", range(9))) == 8


def test_generated_tokens_are_found_by_the_next_turn():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    first = request_of("a", range(6))
    first.output_token_ids += [70, 71, 72]
    computed(kv, first, 8)
    kv.free(first)
    assert kv.num_cached_tokens(request_of("b", [*range(6), 70, 71, 72, 80, 81])) == 8
    assert kv.num_cached_tokens(request_of("c", [*range(6), 70, 99, 72, 80, 81])) == 4


def test_salts_and_different_beginnings_share_nothing():
    kv = KVCacheManager(num_blocks=8, block_size=2)
    computed(kv, request_of("a", [1, 2, 3, 4, 5], salt="x"))
    assert kv.num_cached_tokens(request_of("b", [1, 2, 3, 4, 5], salt="x")) == 4
    assert kv.num_cached_tokens(request_of("c", [1, 2, 3, 4, 5], salt="y")) == 0
    assert kv.num_cached_tokens(request_of("d", [9, 2, 3, 4, 5], salt="x")) == 0, "a block's name has all before it"


def test_what_is_not_computed_yet_is_not_found():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    first = request_of("a", range(12))
    kv.allocate(first, 12)
    kv.confirm(first, kv.table(first), 7)
    assert kv.num_cached_tokens(request_of("b", range(12))) == 4


def test_what_a_step_computed_for_an_earlier_table_names_nothing_in_the_next():
    """A step in flight when its request was preempted: it wrote blocks that the request no longer has."""
    kv = KVCacheManager(num_blocks=8, block_size=4)
    request = request_of("a", range(12))
    kv.allocate(request, 12)
    earlier = kv.table(request)
    kv.free(request)
    kv.allocate(request, 12)
    kv.confirm(request, earlier, 12)
    assert kv.num_cached_tokens(request_of("b", range(12))) == 0
    kv.check_integrity()


def test_room_for_cached_blocks_that_are_in_use_is_not_asked_for_again():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    computed(kv, request_of("a", range(12)))
    second = request_of("b", range(13))
    assert kv.allocate(second, 13, headroom=1) is None
    assert kv.allocate(second, 13) == Grant((0, 1, 2, 3), num_cached_tokens=12)


def test_blocks_about_to_be_revived_are_not_counted_as_room():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    first = request_of("a", range(12))
    computed(kv, first)
    kv.free(first)
    assert kv.num_available_blocks == 4
    assert kv.allocate(request_of("b", range(17)), 17) is None, "3 found and 1 free are 4, and it needs 5"
    assert kv.num_cached_blocks == 3
    kv.check_integrity()


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    first = request_of("a", range(12))
    computed(kv, first)
    kv.free(first)
    kv.allocate(request_of("b", range(90, 94)), 4)
    assert kv.num_cached_tokens(request_of("c", range(12))) == 8


def test_without_the_cache_nothing_is_kept():
    kv = KVCacheManager(num_blocks=8, block_size=4, prefix_cache=False)
    first = request_of("a", range(11))
    computed(kv, first)
    kv.free(first)
    assert (kv.num_cached_blocks, kv.num_cached_tokens(request_of("b", range(11)))) == (0, 0)


def test_what_another_computes_is_on_its_way_until_it_is_there():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    first, second, other = make_request("a", 11), make_request("b", 11), make_request("c", 11)
    other.cache_salt = "another tenant"
    assert not kv.is_coming(second)
    kv.allocate(first, 11)
    assert kv.is_coming(second) and not kv.is_coming(other)
    kv.confirm(first, kv.table(first), 4)
    assert kv.is_coming(second), "its second block is"
    kv.confirm(first, kv.table(first), 11)
    assert not kv.is_coming(second) and kv.num_cached_tokens(second) == 8


def test_nothing_is_on_its_way_from_who_has_left_or_is_of_a_lower_class():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    first, second = make_request("a", 11), make_request("b", 11)
    kv.allocate(first, 11)
    kv.free(first)
    assert not kv.is_coming(second)
    first.request_class = RequestClass("background", 2)
    kv.allocate(first, 11)
    assert not kv.is_coming(second)


def evicted(num_blocks: int = 3, num_disk_slots: int = 8) -> KVCacheManager:
    """A manager of blocks of 4, for which a request of tokens 0 to 11 was computed, and another took all its blocks."""
    kv = KVCacheManager(num_blocks, 4, num_disk_slots=num_disk_slots)
    first, second = request_of("a", range(12)), request_of("b", range(90, 90 + 4 * num_blocks))
    computed(kv, first)
    kv.free(first)
    computed(kv, second)
    kv.free(second)
    return kv


def test_evicted_blocks_are_saved_and_come_back_in_fresh_blocks():
    kv = evicted()
    assert kv.take_transfers() == (((2, 0), (1, 1), (0, 2)), ()), "of a prefix the end is evicted first"
    again = request_of("c", range(12))
    assert kv.num_cached_tokens(again) == 8
    grant = kv.allocate(again, 12)
    assert grant == Grant((0, 1, 2), num_cached_tokens=8), "3 taken, of which 2 are loaded"
    saves, loads = kv.take_transfers()
    assert loads == ((0, 2), (1, 1))
    assert [save.slot for save in saves] == [3, 4, 5]
    kv.check_integrity()


def test_a_loaded_block_is_shared_when_it_is_confirmed():
    kv = evicted(num_blocks=6)
    kv.take_transfers()
    again, other = request_of("c", range(13)), request_of("d", range(13))
    kv.allocate(again, 13)
    assert kv.num_cached_tokens(other) == 12, "on disk it still is"
    assert None in kv._find_prefix(other)
    kv.confirm(again, kv.table(again), 13)
    assert None not in kv._find_prefix(other)


def test_what_is_in_the_pool_is_found_there_and_only_the_rest_is_loaded():
    kv = KVCacheManager(3, 4, num_disk_slots=8)
    first = request_of("a", range(12))
    computed(kv, first)
    kv.free(first)
    kv.allocate(request_of("b", range(90, 94)), 4)
    assert kv.take_transfers().saves == ((2, 0),)
    assert kv.num_cached_tokens(request_of("c", range(13))) == 12
    assert kv.allocate(request_of("c", range(13)), 13) is None, "2 found, and it needs 2 more"
    kv.free(request_of("b", ()))
    assert kv.allocate(request_of("d", range(12)), 12) == Grant((0, 1, 2), num_cached_tokens=8)
    assert kv.take_transfers() == ((), ())


def test_a_request_that_must_load_asks_for_room_for_what_it_loads():
    kv = evicted()
    kv.take_transfers()
    again = request_of("c", range(12))
    assert kv.allocate(again, 12, headroom=1) is None
    assert kv.take_transfers() == ((), ())
    assert kv.allocate(again, 12) is not None


def test_slots_about_to_be_loaded_outlive_what_is_evicted_for_them():
    kv = evicted(num_disk_slots=3)
    kv.take_transfers()
    assert kv.allocate(request_of("c", range(12)), 12) == Grant((0, 1, 2), num_cached_tokens=8)
    saves, loads = kv.take_transfers()
    assert not {save.slot for save in saves} & {load.slot for load in loads}
    assert len(saves) == 3 and len({save.slot for save in saves}) == 1, "the one slot that may give way, three times"
    kv.check_integrity()


def test_what_failed_is_not_found():
    kv = evicted()
    kv.take_transfers()
    kv.forget((1,))  # the second block's
    assert kv.num_cached_tokens(request_of("c", range(12))) == 4


def test_without_the_cache_there_is_nothing_to_archive():
    kv = KVCacheManager(8, 4, prefix_cache=False, num_disk_slots=8)
    assert kv.archive is None
    kv.forget((0,))
