import random

from headway.core.output_lengths import EXPECTED_AT_FIRST, FEWEST, MAX_TENANTS, OutputLengths


def learned(tenant: str = "a", *lengths: int) -> OutputLengths:
    known = OutputLengths()
    for length in lengths:
        known.record(tenant, length)
    return known


def test_before_anything_is_known_an_answer_is_of_common_length_but_within_max_tokens():
    known = OutputLengths()
    assert known.remaining("a", 0, 10_000) == EXPECTED_AT_FIRST
    assert known.remaining("a", 0, 20) == 20
    assert known.remaining("a", 200, 10_000) == 100  # half as much again as it has
    assert known.remaining("a", 1000, 10_000) == 500


def test_a_tenants_own_answers_count_once_there_are_a_few_and_all_tenants_before():
    known = learned("a", *[100] * 20)
    assert known.remaining("b", 0, 1000) == 100
    for number in range(FEWEST):
        known.record("b", 10)
        if number < FEWEST - 1:
            assert known.remaining("b", 0, 1000) > 50
    assert known.remaining("b", 0, 1000) == 10


def test_only_answers_longer_than_what_is_made_say_how_much_is_left():
    known = learned("a", *[10, 1000] * 20)
    assert 400 < known.remaining("a", 0, 5000) < 600
    assert 900 < known.remaining("a", 20, 5000) <= 980
    assert known.remaining("a", 2000, 5000) == 1000, "longer than ever: half as much again"


def test_old_answers_are_forgotten():
    known = learned("a", *[1000] * 100, *[10] * 400)
    assert known.remaining("a", 0, 5000) < 15


def test_at_least_one_token_is_left_and_never_more_than_max_tokens_allow():
    rng = random.Random(3)
    known = OutputLengths()
    for _ in range(2000):
        known.record(rng.choice("abc"), rng.randint(1, 3_000_000))
        num_made, max_tokens = rng.randint(0, 50), rng.randint(51, 4000)
        assert 1 <= known.remaining(rng.choice("abcd"), num_made, max_tokens) <= max_tokens - num_made


def test_only_so_many_tenants_are_remembered():
    known = learned("first", *[7] * 10)
    for number in range(MAX_TENANTS):
        known.record(f"t{number}", 3000)
    assert known.remaining("first", 0, 10_000) > 1000, "its own history is gone"
