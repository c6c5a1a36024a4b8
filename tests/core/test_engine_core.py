import pytest

from fakes import CoreDriver, FakeExecutor, make_driver, make_info, make_request
from headway.config import SchedulerConfig
from headway.core.admission import RefusalReason
from headway.core.engine_core import EngineCore
from headway.core.request import FinishReason
from headway.errors import ConfigError


def test_an_idle_core_has_nothing_to_begin():
    driver, _ = make_driver()
    assert not driver.begin()
    assert driver.run() == {}


def test_a_refused_request_leaves_no_trace():
    driver, _ = make_driver(make_info(num_blocks=4, block_size=4))
    refusal = driver.add(make_request("a", num_prompt_tokens=16)).refusal
    assert refusal.reason is RefusalReason.TOO_LONG
    assert driver.core.num_waiting == 0
    assert driver.core.abort_request("a", 0.0) is None
    assert driver.add(make_request("a", num_prompt_tokens=5)).is_admitted, "the id is still unused"


def test_only_requests_that_wait_count_against_the_limit():
    driver, _ = make_driver(make_info(max_batch_rows=2), max_waiting_requests=2)
    for name in "ab":
        assert driver.add(make_request(name)).is_admitted
    assert driver.add(make_request("c")).refusal.reason is RefusalReason.QUEUE_FULL
    driver.begin()
    assert driver.add(make_request("d")).is_admitted


def test_a_full_queue_says_how_often_a_request_ends():
    driver, _ = make_driver(make_info(max_batch_rows=1), max_waiting_requests=3)
    for name in "abc":
        driver.add(make_request(name, max_tokens=1))
    driver.begin()
    assert driver.add(make_request("d")).is_admitted
    assert driver.add(make_request("e")).refusal.retry_after_s is None, "no request has ended yet"
    driver.run()
    for name in "fgh":
        driver.add(make_request(name))
    assert driver.add(make_request("i")).refusal.retry_after_s == pytest.approx(10 / 3), "ends at 1, 2, 3 and 11"


def test_abort_frees_the_blocks_at_once_and_is_idempotent():
    driver, _ = make_driver()
    driver.add(make_request("a"))
    driver.begin()
    assert driver.core.num_available_blocks < driver.core.num_blocks
    output = driver.core.abort_request("a", 0.0)
    assert (output.finish_reason, output.new_token_ids) == (FinishReason.ABORT, ())
    assert driver.core.num_available_blocks == driver.core.num_blocks
    assert driver.core.abort_request("a", 0.0) is None
    assert driver.core.abort_request("unknown", 0.0) is None
    assert driver.finish() == []
    assert (driver.core.num_running, driver.core.num_waiting) == (0, 0)


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_abort_around_the_last_token_gives_one_end(in_flight):
    driver, _ = make_driver()
    driver.add(make_request("a", max_tokens=1))
    driver.begin()
    if in_flight:
        driver.abort("a")
        driver.finish()
        assert driver.answers["a"].finish_reason is FinishReason.ABORT
    else:
        driver.finish()
        driver.abort("a")
        assert driver.answers["a"].finish_reason is FinishReason.LENGTH


def test_counts_return_to_zero_after_aborting_all():
    driver, _ = make_driver(make_info(max_batch_rows=2), SchedulerConfig(max_in_flight=2))
    for name in "abcd":
        driver.add(make_request(name))
    driver.begin()
    driver.begin()
    for name in "abcd":
        driver.abort(name)
    answers = driver.run()
    assert {answer.finish_reason for answer in answers.values()} == {FinishReason.ABORT}
    assert (driver.core.num_running, driver.core.num_waiting, driver.core.num_in_flight) == (0, 0, 0)
    driver.core.check_integrity()


def test_never_more_than_max_in_flight_steps():
    with pytest.raises(ConfigError, match="max_in_flight"):
        make_driver(config=SchedulerConfig(max_in_flight=0))
    driver, _ = make_driver(config=SchedulerConfig(max_in_flight=2))
    driver.add(make_request("a"))
    assert [driver.begin(), driver.begin(), driver.begin()] == [True, True, False]
    driver.finish()
    assert driver.begin()


def test_an_executor_that_cannot_start_a_step_fails_that_step_alone():
    class Faulty(FakeExecutor):
        def submit(self, batch):
            if batch.step_id == 0:
                self.batches.append(batch)
                raise RuntimeError("out of descriptors")
            return super().submit(batch)

        def _release(self, request_id):
            if request_id in self.sequences:
                super()._release(request_id)

    driver = CoreDriver(EngineCore(Faulty(make_info())))
    driver.add(make_request("a"))
    driver.begin()
    driver.add(make_request("b"))
    answers = driver.run()
    assert (answers["a"].finish_reason, answers["a"].last.error) == (FinishReason.ERROR, "out of descriptors")
    assert answers["b"].finish_reason is FinishReason.LENGTH
