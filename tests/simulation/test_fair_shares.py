"""Tenants that always have requests waiting: their services stay within the stated bound, and nobody waits for ever."""

import random
from collections import Counter

import pytest

from fakes import CoreDriver, make_driver, make_info, make_request
from headway.config import SchedulerConfig, TenantConfig
from headway.core.request import Request, RequestClass
from headway.core.tenants import DECODE_WEIGHT

NUM_STEPS = 600
NUM_ROWS = 4


class Crowd:
    """Tenants of which each keeps some requests waiting, of sizes of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        info = make_info(num_blocks=self.rng.randint(20, 60), max_batch_tokens=32, max_batch_rows=NUM_ROWS)
        self.driver: CoreDriver
        self.weights = {name: self.rng.choice([1.0, 1.0, 2.0, 5.0]) for name in "abcd"}
        self.driver, self.executor = make_driver(
            info, prefix_cache=False, tenants=[TenantConfig(name, weight) for name, weight in self.weights.items()]
        )
        self.sizes = {name: (self.rng.randint(1, 40), self.rng.randint(1, 30)) for name in "abcd"}
        self.names = iter(range(1_000_000))
        self.requests: dict[str, Request] = {}

    def run(self) -> None:
        for _ in range(NUM_STEPS):
            self._fill()
            assert self.driver.begin()
            for output in self.driver.finish():
                if output.finish_reason is not None:
                    del self.requests[output.request_id]
            self._check()

    def _fill(self) -> None:
        waiting = Counter(r.tenant for r in self.requests.values() if r.status.value == "waiting")
        for tenant, (prompt, output) in self.sizes.items():
            for _ in range(3 - waiting[tenant]):
                request = make_request(f"{tenant}{next(self.names)}", prompt, output)
                request.tenant = tenant
                assert self.driver.add(request).is_admitted
                self.requests[request.request_id] = request

    def _check(self) -> None:
        services = {tenant: self.driver.core.services[tenant] for tenant in self.sizes}
        most = max(services, key=services.__getitem__)
        largest = max(prompt + DECODE_WEIGHT * output for prompt, output in self.sizes.values())
        assert services[most] - min(services.values()) <= NUM_ROWS * largest / self.weights[most]


@pytest.mark.parametrize("part", range(4))
def test_services_of_backlogged_tenants_stay_within_the_bound(part):
    for seed in range(part, 40, 4):
        try:
            Crowd(seed).run()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


def test_the_lowest_class_is_served_within_its_longest_wait_whatever_comes_before_it():
    """A step is a second; the machine runs one request of 5 steps at a time."""
    driver, _ = make_driver(config=SchedulerConfig(max_batch_rows=1))
    background = make_request("background", 1, 5)
    background.request_class = RequestClass("background", 2, max_wait_s=50.0)
    for number in range(40):
        request = make_request(f"r{number}", 1, 5)
        request.request_class = RequestClass("interactive", 0, max_wait_s=500.0)
        driver.add(request)
        if number == 3:
            driver.add(background)
    driver.run()
    assert background.first_token_s is not None
    assert 50.0 <= background.first_token_s <= 50.0 + 5 + 1
