import random

import pytest

from fakes import make_request
from headway.config import MemoryConfig
from headway.core.growth import Reserve, Stay, peak_growth
from headway.core.output_lengths import OutputLengths
from headway.core.request import Request
from headway.errors import ConfigError


def played_out(stays: list[Stay], block_size: int) -> int:
    """The most blocks at any time, token by token: all grow, and each leaves when it has all its tokens."""

    def held(step: int) -> int:
        return sum(-(-(stay.num_tokens + step) // block_size) for stay in stays if step <= stay.num_remaining)

    steps = range(max((stay.num_remaining for stay in stays), default=0) + 1)
    return max(map(held, steps), default=0) - held(0)


def test_the_peak_covers_what_a_played_out_pool_needs_and_is_a_block_a_request_above_it_at_most():
    rng = random.Random(1)
    for seed in range(500):
        block_size = rng.choice([1, 4, 16])
        stays = [Stay(rng.randint(0, 300), rng.randint(1, 500)) for _ in range(rng.randint(0, 20))]
        exact, bound = played_out(stays, block_size), peak_growth(stays, block_size)
        assert exact <= bound <= exact + len(stays), f"seed {seed}: {stays}"


def test_what_ends_soon_makes_room_for_what_stays():
    long, short = Stay(100, 16), Stay(1, 160)
    assert peak_growth([long], 16) == 7
    assert peak_growth([long, short], 16) == 2, "both grow by a block; then ten come back"


def reserve(policy: str, lengths: OutputLengths | None = None) -> Reserve:
    return Reserve(
        MemoryConfig(policy, watermark=0.1), num_blocks=100, block_size=4, lengths=lengths or OutputLengths()
    )


def running(max_tokens: int) -> Request:
    request = make_request("a", 8, max_tokens)
    request.max_tokens = max_tokens
    return request


def test_the_policies_reserve_a_block_or_what_is_expected_or_all_that_may_come():
    lengths = OutputLengths()
    for _ in range(10):
        lengths.record("", 40)
    one = running(400)
    assert reserve("none").growth([one]) == 1
    assert reserve("predicted", lengths).growth([one]) == 10
    assert reserve("all").growth([one]) == 100


def test_headroom_counts_the_newcomer_and_the_watermark_but_nothing_where_nobody_runs():
    assert reserve("all").headroom([], running(400)) == 0
    assert 20 + 10 <= reserve("all").headroom([running(40)], running(40)) <= 22 + 10


@pytest.mark.parametrize(
    ("config", "named"),
    [(MemoryConfig(reserve="some"), "memory.reserve"), (MemoryConfig(watermark=1.0), "memory.watermark")],
)
def test_settings_without_sense_are_refused_by_name(config, named):
    with pytest.raises(ConfigError, match=named):
        Reserve(config, 10, 4, OutputLengths())
