from itertools import count

import pytest

from fakes import FakeExecutor, make_info
from headway.bench.offline import OfflineEngine, RunTimes, Work
from headway.config import SchedulerConfig
from headway.errors import BenchError, ConfigError, RequestRefused


def engine(executor: FakeExecutor | None = None, config: SchedulerConfig | None = None) -> OfflineEngine:
    """With a clock that moves by a second each time it is read."""
    seconds = count()
    executor = executor or FakeExecutor(make_info())
    return OfflineEngine(executor, config or SchedulerConfig(), clock=lambda: float(next(seconds)))


def test_speeds_follow_from_when_tokens_came() -> None:
    run = RunTimes(Work(2, 100, 3), [[2.0, 5.0, 6.0], [4.0, 5.0, 7.0]])
    assert run.prefill_s == 4.0 and run.decode_s == 3.0
    assert run.prefill_tokens_per_s == 50.0
    assert run.decode_tokens_per_s == pytest.approx(4 / 3)  # four tokens after both had their first
    assert run.total_tokens_per_s == pytest.approx(206 / 7)
    assert run.gaps_s == [3.0, 1.0, 1.0, 2.0]


def test_a_single_token_has_no_decode() -> None:
    run = RunTimes(Work(1, 100, 1), [[2.0]])
    assert run.decode_tokens_per_s is None and run.gaps_s == []
    assert run.total_tokens_per_s == 50.5


@pytest.mark.parametrize("work", [Work(1, 5, 1), Work(1, 20, 6), Work(3, 9, 4)])
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_every_request_gets_all_its_tokens(work: Work, max_in_flight: int) -> None:
    config = SchedulerConfig(max_batch_tokens=16, max_batch_rows=4, max_in_flight=max_in_flight)
    executor = FakeExecutor(make_info())
    run = engine(executor, config).run(work)
    assert [len(times) for times in run.token_s] == [work.output] * work.batch
    assert all(times == sorted(times) and times[0] > 0 for times in run.token_s)


def test_rounds_have_a_warm_up_and_prompts_of_their_own() -> None:
    executor = FakeExecutor(make_info())
    assert len(list(engine(executor).rounds(Work(1, 8, 2), 3))) == 3
    prompts = [new.token_ids for batch in executor.batches for new in batch.admitted]
    assert len(prompts) == len(set(prompts)) == 4


def test_what_does_not_fit_is_refused_with_numbers_and_leaves_nothing_behind() -> None:
    offline = engine()
    with pytest.raises(RequestRefused, match=r"\d"):
        offline.run(Work(2, 100_000, 2))
    assert len(offline.run(Work(1, 8, 2)).token_s) == 1


def test_a_request_that_fails_ends_the_measurement() -> None:
    executor = FakeExecutor(make_info(), errors={"bench-0": 9})
    with pytest.raises(BenchError, match="a request failed"):
        engine(executor).run(Work(1, 8, 4))


@pytest.mark.parametrize("values", [(0, 1, 1), (1, 0, 1), (1, 1, -3)])
def test_work_is_at_least_one_token(values: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Work(*values)
