import random
import statistics
from itertools import pairwise

import pytest

from headway.bench.workload import (
    MAX_TIMES_MEAN,
    MIN_WORDS,
    WORDS,
    Lengths,
    PlannedRequest,
    TokenCount,
    arrivals,
    at_rate,
    mean_rate,
    plan_requests,
    random_words,
)
from headway.errors import ConfigError


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    gaps = [b - a for a, b in pairwise(arrivals(20_001, cv, random.Random(7)))]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1.0, rel=0.1)
    assert statistics.pstdev(gaps) / mean == pytest.approx(cv, rel=0.1)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    moments = arrivals(20_001, 1.0, random.Random(3))
    counts = [0] * 1900
    for at in moments:
        if at < 19_000:
            counts[int(at / 10)] += 1
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, rel=0.15)


def plan(rate: float = 5.0, cv: float = 1.0, seed: str = "1", sigma: float = 0.5) -> list[PlannedRequest]:
    return plan_requests(rate, cv, 20.0, Lengths(256, sigma), Lengths(64, sigma), seed)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_a_plan_has_exactly_its_rate(cv: float) -> None:
    requests = plan(cv=cv)
    assert len(requests) == 100 and requests[0].at_s == 0
    assert mean_rate(requests) == pytest.approx(5.0)


def test_a_seed_fixes_the_plan() -> None:
    assert plan() == plan()
    assert plan() != plan(seed="2")
    assert [r.num_input_tokens for r in plan(cv=3.0)] == [r.num_input_tokens for r in plan()]
    assert [r.at_s for r in plan(sigma=0)] == [r.at_s for r in plan()]


def test_less_than_two_requests_are_no_rate() -> None:
    with pytest.raises(ConfigError, match="run for longer"):
        plan(rate=0.05)


def test_lengths_are_log_normal_around_their_mean() -> None:
    rng = random.Random(5)
    drawn = [Lengths(256, 0.5).draw(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(256, rel=0.02)
    assert statistics.median(drawn) == pytest.approx(256 * 0.8825, rel=0.02)  # exp(-sigma^2 / 2)
    assert min(drawn) >= 1 and max(drawn) <= MAX_TIMES_MEAN * 256


def test_lengths_may_be_fixed_and_are_never_zero() -> None:
    rng = random.Random(5)
    assert {Lengths(256, 0).draw(rng) for _ in range(10)} == {256}
    assert min(Lengths(1, 2.0).draw(rng) for _ in range(1000)) == 1


def test_a_plan_is_stretched_to_a_rate() -> None:
    requests = [PlannedRequest(at, 1, 1) for at in (0.0, 1.0, 4.0)]
    assert [r.at_s for r in at_rate(requests, 2.0)] == [0.0, 0.25, 1.0]


def test_one_moment_is_no_rate() -> None:
    with pytest.raises(ConfigError, match="at least two moments"):
        mean_rate([PlannedRequest(0.0, 1, 1)] * 3)


def test_the_number_of_words_follows_from_how_the_server_counts() -> None:
    count = TokenCount.fitted((16, 32 + 5), (64, 128 + 5))
    assert count == TokenCount(2.0, 5.0)
    assert count.words(205) == 100
    assert count.words(3) == MIN_WORDS


def test_a_server_that_counts_nonsense_is_not_believed() -> None:
    assert TokenCount.fitted((16, 7), (64, 7)) == TokenCount()


def test_words_are_distinct_and_drawn_by_the_generator() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert len(random_words(30, random.Random(1)).split()) == 30
    prompts = {random_words(MIN_WORDS, random.Random(f"{seed}")) for seed in range(1000)}
    assert len(prompts) == 1000
