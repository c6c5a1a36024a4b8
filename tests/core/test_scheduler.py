"""The scheduler's rules, driven through ``EngineCore`` with a strict fake executor."""

import pytest

from fakes import expected_tokens, fake_token, make_driver, make_info, make_request
from headway.config import MemoryConfig, SchedulerConfig
from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.request import FinishReason, Objective, RequestStatus
from headway.errors import ConfigError

VOCAB = 1000
NO_RESERVE = MemoryConfig(reserve="none", watermark=0.0)


def rows(batch: ScheduledBatch) -> list[tuple[str, int, int, bool]]:
    return [(row.request_id, row.start, row.num_tokens, row.samples) for row in batch.rows]


def test_a_prompt_is_computed_in_chunks_then_a_token_a_step():
    driver, executor = make_driver(config=SchedulerConfig(max_batch_tokens=4))
    driver.add(make_request("a", num_prompt_tokens=10, max_tokens=3))
    driver.run()
    assert [rows(batch) for batch in executor.batches] == [
        [("a", 0, 4, False)],
        [("a", 4, 4, False)],
        [("a", 8, 2, True)],
        [("a", 10, 1, True)],
        [("a", 11, 1, True)],
    ]


def test_decodes_and_prefill_chunks_share_a_step_within_its_budget():
    driver, executor = make_driver(config=SchedulerConfig(max_batch_tokens=6))
    driver.add(make_request("a", num_prompt_tokens=2, max_tokens=4))
    driver.begin()
    driver.finish()
    driver.add(make_request("b", num_prompt_tokens=7, max_tokens=1))
    driver.add(make_request("c", num_prompt_tokens=3, max_tokens=1))
    driver.run()
    assert [rows(batch) for batch in executor.batches[1:3]] == [
        [("a", 2, 1, True), ("b", 0, 5, False)],
        [("a", 3, 1, True), ("b", 5, 2, True), ("c", 0, 3, True)],
    ]


def test_a_step_has_at_most_max_batch_rows():
    driver, executor = make_driver(config=SchedulerConfig(max_batch_rows=3))
    for index in range(7):
        driver.add(make_request(f"r{index}", max_tokens=4))
    driver.run()
    assert max(len(batch.rows) for batch in executor.batches) == 3


def test_the_executors_limits_count_as_well_as_the_settings():
    info = make_info(max_batch_tokens=5, max_batch_rows=2)
    driver, executor = make_driver(info)
    for index in range(4):
        driver.add(make_request(f"r{index}", num_prompt_tokens=9, max_tokens=4))
    driver.run()  # the fake checks each batch
    assert max(batch.num_tokens for batch in executor.batches) == 5


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_exactly_max_tokens_are_generated(max_in_flight):
    driver, executor = make_driver(config=SchedulerConfig(max_in_flight=max_in_flight))
    requests = [make_request(f"r{n}", max_tokens=n) for n in (1, 2, 7)]
    for request in requests:
        driver.add(request)
    answers = driver.run()
    for request in requests:
        answer = answers[request.request_id]
        assert (answer.token_ids, answer.finish_reason) == (expected_tokens(request, VOCAB)[0], FinishReason.LENGTH)
    last_position = {row.request_id: row.start for batch in executor.batches for row in batch.rows}
    assert last_position["r7"] == 5 + 7 - 2, "the last token is never computed, whatever is in flight"


def test_max_tokens_none_runs_to_the_context_limit():
    driver, _ = make_driver(make_info(num_blocks=8, block_size=4, max_context=20))
    driver.add(make_request("a", num_prompt_tokens=5, max_tokens=None))
    answer = driver.run()["a"]
    assert (len(answer.token_ids), answer.finish_reason) == (15, FinishReason.LENGTH)


class TestStopRules:
    """The token at output index 2 is the stop."""

    STOP = fake_token("a", 5 + 2, VOCAB)

    def run(self, max_in_flight: int = 1, **kwargs):
        driver, _ = make_driver(config=SchedulerConfig(max_in_flight=max_in_flight))
        request = make_request("a", max_tokens=6, **kwargs)
        driver.add(request)
        return driver.run()["a"], request

    @pytest.mark.parametrize("max_in_flight", [1, 2, 3])
    @pytest.mark.parametrize("kind", ["eos", "stop"])
    def test_the_stop_token_is_the_last_and_is_named(self, kind, max_in_flight):
        stop = {"eos_token_ids": frozenset({self.STOP, 5})} if kind == "eos" else {"stop_token_ids": (9, self.STOP)}
        answer, request = self.run(max_in_flight, **stop)
        assert answer.token_ids == expected_tokens(request, VOCAB)[0]
        assert len(answer.token_ids) == 3 and answer.token_ids[-1] == self.STOP
        assert (answer.finish_reason, answer.last.stop_token_id) == (FinishReason.STOP, self.STOP)

    def test_ignore_eos_runs_to_max_tokens_but_heeds_stop_token_ids(self):
        answer, _ = self.run(eos_token_ids=frozenset({self.STOP, 7}), ignore_eos=True)
        assert (len(answer.token_ids), answer.finish_reason, answer.last.stop_token_id) == (
            6,
            FinishReason.LENGTH,
            None,
        )
        answer, _ = self.run(eos_token_ids=frozenset({7}), ignore_eos=True, stop_token_ids=(self.STOP,))
        assert (len(answer.token_ids), answer.finish_reason) == (3, FinishReason.STOP)

    @pytest.mark.parametrize(("min_tokens", "expected"), [(2, 3), (3, 6)])
    def test_no_stop_counts_within_min_tokens(self, min_tokens, expected):
        for stop in ({"eos_token_ids": frozenset({self.STOP})}, {"stop_token_ids": (self.STOP,)}):
            answer, _ = self.run(min_tokens=min_tokens, **stop)
            assert len(answer.token_ids) == expected

    def test_a_stop_on_the_last_token_allowed_is_a_stop(self):
        driver, _ = make_driver()
        driver.add(make_request("a", max_tokens=3, stop_token_ids=(self.STOP,)))
        assert driver.run()["a"].finish_reason is FinishReason.STOP


class TestPreemption:
    """Where nothing is reserved, memory runs short sooner."""

    def test_the_latest_arrived_is_the_victim_and_the_text_is_whole(self):
        driver, _ = make_driver(make_info(num_blocks=6, block_size=2), memory=NO_RESERVE)
        requests = [make_request(name, num_prompt_tokens=3, max_tokens=8) for name in "abc"]
        for request in requests:
            driver.add(request)
        answers = driver.run()
        num_preemptions = [request.num_preemptions for request in requests]
        assert num_preemptions[0] == 0 and sum(num_preemptions) == driver.core.num_preemptions > 0
        for request in requests:
            assert answers[request.request_id].token_ids == expected_tokens(request, VOCAB)[0]

    def test_the_preempted_keep_their_rank(self):
        driver, executor = make_driver(make_info(num_blocks=9, block_size=2), memory=NO_RESERVE)
        for name in "abcd":
            driver.add(make_request(name, num_prompt_tokens=3, max_tokens=10))
        while driver.begin():
            row_ids = [row.request_id for row in executor.batches[-1].rows]
            unfinished = [name for name in "abcd" if driver.answers[name].last is None]
            assert row_ids == unfinished[: len(row_ids)], "those that run arrived before all that wait"
            driver.finish()
        assert driver.core.num_preemptions > 1

    def test_two_prompts_of_60_percent_of_the_pool_both_end(self):
        driver, _ = make_driver(
            make_info(num_blocks=10, block_size=4, max_batch_tokens=8), prefix_cache=False, memory=NO_RESERVE
        )
        for name in "ab":
            driver.add(make_request(name, num_prompt_tokens=24, max_tokens=10))
        answers = driver.run(max_steps=100)
        assert {name: len(answer.token_ids) for name, answer in answers.items()} == {"a": 10, "b": 10}
        assert driver.core.num_preemptions == 0, "the second waits: it is never half admitted"

    def test_nobody_is_preempted_to_let_a_newcomer_in(self):
        driver, _ = make_driver(make_info(num_blocks=4, block_size=4), memory=NO_RESERVE)
        driver.add(make_request("a", num_prompt_tokens=8, max_tokens=4))
        driver.begin()
        driver.finish()
        driver.add(make_request("b", num_prompt_tokens=8, max_tokens=4))
        driver.run()
        assert driver.core.num_preemptions == 0

    def test_a_newcomer_leaves_a_block_for_each_that_runs(self):
        driver, executor = make_driver(make_info(num_blocks=4, block_size=4), memory=NO_RESERVE)
        driver.add(make_request("a", num_prompt_tokens=7, max_tokens=8))
        driver.add(make_request("b", num_prompt_tokens=7, max_tokens=8))
        driver.begin()
        assert rows(executor.batches[0]) == [("a", 0, 7, True)]

    def test_nobody_is_preempted_and_admitted_in_one_step(self):
        driver, executor = make_driver(make_info(num_blocks=7, block_size=2), memory=NO_RESERVE)
        for name in "abcde":
            driver.add(make_request(name, num_prompt_tokens=3, max_tokens=9))
        driver.run()
        assert driver.core.num_preemptions > 1
        for batch in executor.batches:
            assert not set(batch.released).intersection(new.request_id for new in batch.admitted)

    def test_the_oldest_gains_a_token_in_every_step(self):
        driver, _ = make_driver(make_info(num_blocks=7, block_size=1, max_batch_rows=6), memory=NO_RESERVE)
        names = [f"r{index}" for index in range(6)]
        for name in names:
            driver.add(make_request(name, num_prompt_tokens=1, max_tokens=6))
        while driver.begin():
            oldest = next(name for name in names if driver.answers[name].last is None)
            assert oldest in [output.request_id for output in driver.finish()]
        assert driver.core.num_preemptions > 0

    @pytest.mark.parametrize("max_in_flight", [2, 3])
    def test_tokens_in_flight_at_preemption_are_neither_lost_nor_doubled(self, max_in_flight):
        info = make_info(num_blocks=6, block_size=2)
        driver, _ = make_driver(info, SchedulerConfig(max_in_flight=max_in_flight), memory=NO_RESERVE)
        requests = [make_request(name, num_prompt_tokens=3, max_tokens=8) for name in "abc"]
        for request in requests:
            driver.add(request)
        answers = driver.run()
        assert driver.core.num_preemptions > 0
        for request in requests:
            assert answers[request.request_id].token_ids == expected_tokens(request, VOCAB)[0]


class TestSeveralStepsInFlight:
    def test_the_next_position_is_scheduled_before_its_token_is_known(self):
        driver, executor = make_driver(config=SchedulerConfig(max_in_flight=3))
        driver.add(make_request("a", num_prompt_tokens=5, max_tokens=8))
        assert [driver.begin() for _ in range(4)] == [True, True, True, False]
        assert [rows(batch) for batch in executor.batches] == [
            [("a", 0, 5, True)],
            [("a", 5, 1, True)],
            [("a", 6, 1, True)],
        ]
        assert driver.core.num_in_flight == 3

    def test_results_for_a_request_aborted_meanwhile_are_dropped(self):
        driver, executor = make_driver(config=SchedulerConfig(max_in_flight=2))
        driver.add(make_request("a"))
        driver.add(make_request("b"))
        driver.begin()
        driver.begin()
        driver.abort("a")
        answers = driver.run()
        assert (answers["a"].token_ids, answers["a"].finish_reason) == ([], FinishReason.ABORT)
        assert len(answers["b"].token_ids) == 8
        assert executor.batches[2].released == ("a",)

    def test_steps_must_come_back_in_order(self):
        driver, _ = make_driver(config=SchedulerConfig(max_in_flight=2))
        driver.add(make_request("a"))
        driver.begin()
        driver.begin()
        second = driver.in_flight[1]
        with pytest.raises(ValueError, match="step 1 came back, step 0 was expected"):
            driver.core.finish_step(second, StepResult(1, (), 0.0), 0.0)


class TestErrors:
    def test_a_failed_row_ends_its_request_alone(self):
        driver, _ = make_driver(errors={"a": 6})
        requests = [make_request("a"), make_request("b")]
        for request in requests:
            driver.add(request)
        answers = driver.run()
        assert (answers["a"].finish_reason, answers["a"].last.error) == (FinishReason.ERROR, "row of a failed")
        assert answers["a"].token_ids == expected_tokens(requests[0], VOCAB)[0][:2]
        assert answers["b"].token_ids == expected_tokens(requests[1], VOCAB)[0]

    def test_a_failed_prefill_chunk_ends_its_request(self):
        driver, _ = make_driver(config=SchedulerConfig(max_batch_tokens=4), errors={"a": 2})
        driver.add(make_request("a", num_prompt_tokens=10))
        answer = driver.run()["a"]
        assert (answer.finish_reason, answer.token_ids) == (FinishReason.ERROR, [])

    def test_a_token_the_executor_forgot_is_an_error_not_a_hang(self):
        driver, _ = make_driver()
        driver.add(make_request("a"))
        step = driver.core.begin_step(0.0)
        stray = SampledToken("nobody", 1)
        (output,) = driver.core.finish_step(step, StepResult(0, (stray,), 0.0), 1.0)
        assert (output.finish_reason, output.error) == (FinishReason.ERROR, "the executor returned no token")

    @pytest.mark.parametrize("max_in_flight", [1, 2, 3])
    def test_a_failed_step_ends_the_requests_in_it_and_no_others(self, max_in_flight):
        info = make_info(max_batch_rows=2)
        driver, executor = make_driver(info, SchedulerConfig(max_in_flight=max_in_flight), prefix_cache=False)
        executor.failing_steps = {1}
        requests = [make_request(name) for name in "abc"]
        for request in requests:
            driver.add(request)
        answers = driver.run()
        for name in "ab":
            assert answers[name].finish_reason is FinishReason.ERROR
            assert "step 1 was made to fail" in answers[name].last.error
        assert answers["c"].token_ids == expected_tokens(requests[2], VOCAB)[0]
        driver.core.check_integrity()


class TestBlocksOnDisk:
    """A prompt of 3 blocks, whose blocks another has driven out of a pool of 5."""

    def driver(self, max_in_flight=1, save_fails=lambda: False):
        config = SchedulerConfig(max_in_flight=max_in_flight)
        info = make_info(num_blocks=5, block_size=4, num_disk_slots=8)
        driver, executor = make_driver(info, config, memory=NO_RESERVE)
        executor.save_fails = save_fails
        other = make_request("other", 17, max_tokens=1)
        other.prompt_token_ids = tuple(range(90, 107))
        for request in (make_request("first", 13, max_tokens=1), other):
            driver.add(request)
            driver.run()
        return driver, executor

    def run(self, driver):
        """Another request with the prompt of the first."""
        again = make_request("again", 13, max_tokens=4)
        driver.add(again)
        assert driver.run()["again"].token_ids == expected_tokens(again, VOCAB)[0]
        return again

    @pytest.mark.parametrize("max_in_flight", [1, 3])
    def test_they_come_back_before_the_rows_that_need_them(self, max_in_flight):
        driver, executor = self.driver(max_in_flight)
        again = self.run(driver)
        (batch,) = [batch for batch in executor.batches if batch.loads]
        assert rows(batch) == [("again", 12, 1, True)]
        assert [load.block_id for load in batch.loads] == list(batch.rows[0].new_block_ids[:3])
        assert again.num_cached_tokens == 12
        assert driver.core.disk_transfers == {"save": 6, "load": 3, "failed": 0}

    @pytest.mark.parametrize("max_in_flight", [1, 3])
    def test_one_that_cannot_be_loaded_is_computed_again(self, max_in_flight):
        """With 3 steps in flight two more are computed on it before anybody knows."""
        driver, executor = self.driver(max_in_flight)
        fails = iter([False, True, False])
        executor.load_fails = lambda: next(fails, False)
        again = self.run(driver)
        assert (executor.num_spoilt, again.num_preemptions, again.num_cached_tokens) == (1, 1, 4)
        assert rows(executor.batches[2 + max_in_flight]) == [("again", 4, 9, True)]
        assert driver.core.disk_transfers["failed"] == 1

    def test_one_that_cannot_be_saved_is_not_looked_for(self):
        driver, _ = self.driver(save_fails=lambda: True)
        assert self.run(driver).num_cached_tokens == 0
        transfers = driver.core.disk_transfers
        assert transfers["failed"] == transfers["save"] > 0 == transfers["load"]

    def test_a_request_that_is_aborted_before_its_load_has_failed_is_gone(self):
        driver, executor = self.driver()
        executor.load_fails = lambda: True
        driver.add(make_request("again", 13, max_tokens=4))
        driver.begin()
        driver.abort("again")
        assert driver.finish() == []
        driver.core.check_integrity()
        assert driver.core.num_running == driver.core.num_waiting == 0


def test_ended_requests_are_released_with_the_next_batch_once():
    driver, executor = make_driver(prefix_cache=False)
    driver.add(make_request("a", max_tokens=1))
    driver.add(make_request("b", max_tokens=3))
    driver.add(make_request("never-ran", max_tokens=3))
    driver.abort("never-ran")
    driver.run()
    assert [batch.released for batch in executor.batches] == [(), ("a",), ()]


def test_an_id_in_use_is_an_error():
    driver, _ = make_driver()
    driver.add(make_request("a"))
    with pytest.raises(ValueError, match="'a' is in use"):
        driver.add(make_request("a"))


@pytest.mark.parametrize("config", [SchedulerConfig(max_batch_tokens=0), SchedulerConfig(max_batch_rows=0)])
def test_a_step_must_have_room(config):
    with pytest.raises(ConfigError, match="at least 1"):
        make_driver(config=config)


def test_status_follows_the_life_of_a_request():
    driver, _ = make_driver(make_info(num_blocks=4, block_size=2), memory=NO_RESERVE)
    a, b = make_request("a", 1, max_tokens=7), make_request("b", 1, max_tokens=7)
    driver.add(a)
    driver.add(b)
    assert b.status is RequestStatus.WAITING
    seen = set()
    while driver.begin():
        seen.add(b.status)
        driver.finish()
    assert seen >= {RequestStatus.RUNNING, RequestStatus.PREEMPTED}
    assert a.status is b.status is RequestStatus.FINISHED


def test_of_several_requests_with_one_prompt_the_first_computes_it_and_the_others_find_it():
    driver, executor = make_driver(make_info(block_size=4, max_batch_tokens=16))
    names = [f"choice{number}" for number in range(4)]
    for name in names:
        driver.add(make_request(name, num_prompt_tokens=40, max_tokens=3))
    driver.run()
    prefilled = [sum(row.num_tokens for row in batch.rows if row.start < 40) for batch in executor.batches]
    assert sum(prefilled) == 40 + 3 * 4, "the others compute the last block, which has their last token"
    assert driver.core.num_cached_tokens == 3 * 36


def test_who_shares_nothing_goes_before_those_who_wait_for_a_prompt():
    driver, executor = make_driver(make_info(block_size=4, max_batch_tokens=16))
    for name in ("a", "b"):
        driver.add(make_request(name, num_prompt_tokens=60, max_tokens=3))
    driver.add(other := make_request("c", num_prompt_tokens=3, max_tokens=3))
    other.prompt_token_ids = (7, 8, 9)
    driver.run()
    admissions = [new.request_id for batch in executor.batches for new in batch.admitted]
    assert admissions == ["a", "c", "b"]


class TestFlood:
    """Eight rows, of which one tenant would take all."""

    def flooded(self, **settings):
        driver, executor = make_driver(make_info(num_blocks=400), prefix_cache=False, **settings)
        for number in range(12):
            request = make_request(f"flood{number}", num_prompt_tokens=4, max_tokens=100)
            request.tenant = "flood"
            driver.add(request)
        return driver, executor

    def newcomer(self, driver, num_prompt_tokens=4):
        request = make_request("new", num_prompt_tokens, max_tokens=3)
        request.tenant, request.objective = "other", Objective(ttft_s=50.0)
        driver.add(request)
        return request

    def test_the_last_row_is_for_who_has_not_had_its_part(self):
        driver, executor = self.flooded()
        early = make_request("early", 4, max_tokens=1)
        early.tenant = "other"
        driver.add(early)
        for _ in range(3):
            driver.begin()
            driver.finish()
        assert driver.core.num_running == 7
        self.newcomer(driver)
        driver.begin()
        assert "new" in [new.request_id for new in executor.batches[-1].admitted]

    def test_who_floods_gives_way_to_a_first_token_until_both_have_had_as_much(self):
        driver, executor = self.flooded(config=SchedulerConfig(max_batch_tokens=10))
        for _ in range(6):
            driver.begin()
            driver.finish()
        running = driver.core.num_running
        driver.abort("flood0")
        self.newcomer(driver, num_prompt_tokens=25)
        sizes = []
        for _ in range(5):
            driver.begin()
            sizes.append([(row.request_id, row.num_tokens) for row in executor.batches[-1].rows])
            driver.finish()
        assert running == 8
        assert sizes[0] == [("new", 10)]
        assert len(sizes[1]) == 8 and ("new", 3) in sizes[1], "by now it has had more than they"
        assert sizes[2] == [("new", 10)]

    def test_where_nothing_comes_of_giving_way_nobody_does(self):
        """The newcomer's row is free, its memory is not: they all go on."""
        driver, executor = make_driver(make_info(num_blocks=9, block_size=4), memory=NO_RESERVE, prefix_cache=False)
        for number in range(4):
            request = make_request(f"flood{number}", num_prompt_tokens=4, max_tokens=4)
            request.tenant = "flood"
            driver.add(request)
        driver.begin()
        driver.finish()
        self.newcomer(driver, num_prompt_tokens=30)
        driver.begin()
        assert len(executor.batches[-1].rows) == 4
