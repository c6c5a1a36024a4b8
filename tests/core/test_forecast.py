"""Predicted first tokens against those of the scheduler itself, on a clock that its step times move."""

import math
import random
import statistics

import pytest

from fakes import CoreDriver, LinearStepTimes, make_driver, make_info, make_request
from headway.config import SchedulerConfig, TenantConfig
from headway.core.request import Objective, Request, RequestClass

TIMES = LinearStepTimes(step_s=0.01, token_s=0.001)


def timed(rows: int = 8, num_blocks: int = 4000, **settings) -> CoreDriver:
    info = make_info(num_blocks=num_blocks, block_size=16, max_batch_tokens=64, max_batch_rows=rows)
    scheduler = settings.pop("scheduler", SchedulerConfig(max_batch_tokens=64, max_batch_rows=rows))
    driver, _ = make_driver(info, scheduler, step_times=TIMES, clock=TIMES, **settings)
    return driver


def sized(name: str, prompt: int, output: int, tpot_s: float = math.inf) -> Request:
    request = make_request(name, prompt, output, ignore_eos=True)
    request.prompt_token_ids = tuple(random.Random(name).choices(range(1000), k=prompt))
    request.objective = Objective(tpot_s=tpot_s)
    return request


def actual(request: Request) -> float:
    assert request.first_token_s is not None
    return request.first_token_s - request.arrival_s


def test_alone_it_is_its_own_prefill():
    driver = timed()
    request = sized("a", 50, 5)
    driver.add(request)
    driver.run()
    assert request.predicted_ttft_s == pytest.approx(actual(request)) == pytest.approx(0.06)


def test_behind_others_it_is_the_sum_of_their_prefills():
    driver = timed()
    requests = [sized(f"r{i}", 640, 1) for i in range(6)]
    for request in requests:
        driver.add(request)
    driver.run()
    for request in requests:
        assert request.predicted_ttft_s == pytest.approx(actual(request), rel=0.25)


def test_beside_decodes_with_an_objective_a_prompt_takes_as_much_longer_as_they_leave_it_less_of_a_step():
    driver = timed()
    for number in range(4):
        driver.add(sized(f"r{number}", 10, 3000, tpot_s=0.028))
    for _ in range(10):
        driver.begin()
        driver.finish()
    prompt = sized("long", 1000, 2)
    driver.add(prompt)
    while prompt.first_token_s is None:
        driver.begin()
        driver.finish()
    assert prompt.predicted_ttft_s == pytest.approx(actual(prompt), rel=0.2)
    assert actual(prompt) > 1.6, "half of each step at the most"


@pytest.mark.parametrize(("rows", "num_blocks"), [(2, 4000), (8, 40)])
def test_without_room_it_waits_for_those_that_run_to_end(rows, num_blocks):
    """Rows or blocks for two at a time, and answers of a length that is known by then."""
    driver = timed(rows, num_blocks)
    for number in range(6):
        driver.add(sized(f"before{number}", 200, 100))
    driver.run()
    requests = [sized(f"r{i}", 200, 100) for i in range(6)]
    for request in requests:
        driver.add(request)
    driver.run()
    for request in requests[2:]:
        assert request.predicted_ttft_s == pytest.approx(actual(request), rel=0.3)


def test_those_ahead_are_of_higher_classes_and_of_tenants_with_less_service():
    driver = timed(tenants=(TenantConfig("a"), TenantConfig("b")))
    for number in range(5):
        request = sized(f"a{number}", 640, 1)
        request.tenant = "a"
        driver.add(request)
    low, other = sized("low", 64, 1), sized("other", 64, 1)
    low.tenant, low.request_class = "c", RequestClass("background", 2)
    other.tenant = "b"
    for request in (low, other):
        driver.add(request)
    driver.run()
    for request in (low, other):
        assert request.predicted_ttft_s == pytest.approx(actual(request), rel=0.3)
    assert actual(other) < 1.5 < actual(low)


def test_over_random_loads_predictions_are_near_in_the_median():
    """Poisson arrivals at four fifths of what the machine can do; lengths as a mix of short and long."""
    errors = []
    for seed in range(5):
        rng, driver, requests = random.Random(seed), timed(rows=16), []
        due = 0.0
        for number in range(150):
            due += rng.expovariate(1.8)
            while driver.now < due and (driver.core.num_running or driver.core.num_waiting):
                driver.begin()
                driver.finish()
            driver.now = max(driver.now, due)
            requests.append(sized(f"r{number}", rng.choice([20, 60, 400]), rng.choice([5, 20, 60]), tpot_s=0.08))
            driver.add(requests[-1])
        driver.run()
        errors += [abs(r.predicted_ttft_s - actual(r)) / max(actual(r), r.predicted_ttft_s) for r in requests[30:]]
    assert statistics.median(errors) < 0.3, statistics.quantiles(errors)
