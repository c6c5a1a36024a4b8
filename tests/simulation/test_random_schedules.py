"""Random lives of an engine: random pools, requests, stops, aborts, failures; every law checked after every step.

A failing seed is printed with the command that replays it alone:

    HEADWAY_SEED=1234 python -m pytest tests/simulation/test_random_schedules.py
"""

import math
import os
import random
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest

from fakes import Answer, FakeExecutor, LinearStepTimes, expected_tokens, make_driver, make_info, make_request
from headway.config import MemoryConfig, SchedulerConfig, TenantConfig
from headway.core import engine_core
from headway.core.admission import Refusal, RefusalReason
from headway.core.batch import ScheduledBatch
from headway.core.executor import ExecutorInfo
from headway.core.growth import Reserve
from headway.core.kv_cache_manager import Grant, KVCacheManager
from headway.core.request import FinishReason, Objective, Request, RequestClass

VOCAB = 40  # small, so that random stop ids are met often
NUM_SEEDS = 3000
NUM_SEEDS_LONG = 60_000
MAX_EVENTS = 10_000


class Life:
    """One random engine and its random callers. The same seed gives the same decisions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        info = self._random_info()
        self.config = SchedulerConfig(
            max_batch_tokens=self.rng.randint(1, 24),
            max_batch_rows=self.rng.randint(1, 8),
            max_in_flight=self.rng.randint(1, 3),
            min_prefill_tokens=self.rng.randint(1, 8),
            policy=self.rng.choice(["fair", "fair", "fcfs"]),
        )
        self.prefix_cache = self.rng.random() < 0.8
        times = LinearStepTimes(self.rng.random(), self.rng.random()) if self.rng.random() < 0.5 else None
        with patch.object(engine_core, "KVCacheManager", self._kv_cache_manager):
            self.driver, self.executor = make_driver(info, self.config, step_times=times, **self._random_settings())
        self.failing_steps: set[int] = set()
        self.executor.failing_steps = self.failing_steps
        disk, save_failure_rate, load_failure_rate = (
            random.Random(seed),
            *self.rng.choice([(0, 0), (0.1, 0.1), (0, 0.5)]),
        )
        self.executor.save_fails = lambda: disk.random() < save_failure_rate
        self.executor.load_fails = lambda: disk.random() < load_failure_rate
        self.beginnings = self.rng.choice([(0, 0, 0, 1000), range(0, 5000, 1000)])
        num_arrivals = self.rng.randint(1, self.rng.choice([14, 14, 40]))
        self.arrivals = [self._random_request(f"r{index}") for index in range(num_arrivals)]
        self.requests: dict[str, Request] = {}
        self.refused: list[tuple[Request, Refusal]] = []
        self.abort_rate = self.rng.choice([0.0, 0.0, 0.02, 0.1])
        self.step_failure_rate = self.rng.choice([0.0, 0.0, 0.0, 0.05])

    def _kv_cache_manager(self, *args: Any) -> KVCacheManager:
        """Now and then it has no blocks to give, whatever is free."""
        self.kv = FlakyKVCacheManager(*args)
        self.kv.rng = self.rng
        self.kv.failure_rate = self.rng.choice([0.0, 0.0, 0.0, 0.05])
        return self.kv

    def _random_settings(self) -> dict[str, Any]:
        rng = self.rng
        limited = TenantConfig(
            rng.choice(["a", "*"]),
            max_requests=rng.choice([0, 0, 3]),
            max_tokens_in_flight=rng.choice([0, 0, 60]),
            max_tokens_per_minute=rng.choice([0, 0, 600]),
            max_kv_share=rng.choice([1.0, 1.0, 0.3]),
        )
        return {
            "prefix_cache": self.prefix_cache,
            "memory": MemoryConfig(rng.choice(Reserve.POLICIES), rng.choice([0.0, 0.01, 0.3])),
            "deadlines": rng.choice(["off", "shadow", "on"]),
            "max_waiting_requests": rng.choice([0, 0, 5]),
            "max_waiting_tokens": rng.choice([0, 0, 40]),
            "tenants": [limited, TenantConfig("b", rng.choice([1.0, 3.0]))],
        }

    def run(self) -> "Life":
        for _ in range(MAX_EVENTS):
            if not self._act():
                return self
            self._check_state()
        raise AssertionError(f"requests are left after {MAX_EVENTS} events")

    def _random_info(self) -> ExecutorInfo:
        rng = self.rng
        num_blocks, block_size = rng.randint(2, 24), rng.randint(1, 6)
        return make_info(
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=rng.randint(num_blocks * block_size // 2 + 1, num_blocks * block_size),
            max_batch_tokens=rng.randint(1, 24),
            max_batch_rows=rng.randint(1, 8),
            vocab_size=VOCAB,
            num_disk_slots=rng.choice([0, 1, rng.randint(1, 10), rng.randint(1, 60)]),
        )

    def _random_request(self, request_id: str) -> Request:
        rng, max_context = self.rng, self.executor.info.max_context
        request = make_request(
            request_id,
            num_prompt_tokens=rng.randint(1, max(1, int(max_context * rng.choice([0.05, 0.2, 0.6, 1.1])))),
            max_tokens=rng.choice([None, 1, rng.randint(1, max_context), rng.randint(1, max_context)]),
            eos_token_ids=frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 1, 2]))),
            stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 1]))),
            ignore_eos=rng.random() < 0.2,
            min_tokens=rng.choice([0, 0, rng.randint(0, 6)]),
        )
        tpot_s, ttft_s, deadline_s = (rng.choice([math.inf, 0.5, 2.0, 5.0, 20.0]) for _ in range(3))
        request.objective = Objective(tpot_s, ttft_s, deadline_s)
        request.tenant = rng.choice(["", "", "a", "b"])
        request.request_class = RequestClass("", rng.randint(0, 2), max_wait_s=rng.choice([2.0, 20.0]))
        request.cache_salt = rng.choice(["", "", "", "another tenant"])
        beginning = rng.choice(self.beginnings)  # those that begin alike
        request.prompt_token_ids = tuple(token_id + beginning for token_id in request.prompt_token_ids)
        if rng.random() < 0.05:
            self.executor.errors[request_id] = rng.randint(0, max_context)
        return request

    def _act(self) -> bool:
        """One random event; False when nothing is left to do."""
        rng, driver = self.rng, self.driver
        if self.arrivals and rng.random() < 0.2:
            self._arrive(self.arrivals.pop())
        elif self.requests and rng.random() < self.abort_rate:
            driver.abort(rng.choice(sorted(self.requests)))
        elif driver.in_flight and rng.random() < 0.4:
            driver.finish()
        elif rng.random() < self.step_failure_rate:
            self.failing_steps.add(driver.core.num_steps)
        elif not driver.begin():
            if driver.in_flight:
                driver.finish()
            elif self.arrivals:
                self._arrive(self.arrivals.pop())
            else:  # an allocation that was made to fail may be tried again
                return bool(self.kv.failure_rate and driver.core.num_waiting)
        return True

    def _arrive(self, request: Request) -> None:
        refusal = self.driver.add(request).refusal
        if refusal is None:
            self.requests[request.request_id] = request
        else:
            self.refused.append((request, refusal))

    def _check_state(self) -> None:
        core, unfinished = self.driver.core, [a for a in self.driver.answers.values() if a.last is None]
        core.check_integrity()
        assert core.num_running + core.num_waiting == len(unfinished), "every request is in one place"
        assert core.num_in_flight == len(self.driver.in_flight) <= self.config.max_in_flight
        if self.executor.batches:
            self._check_budgets(self.executor.batches[-1])

    def _check_budgets(self, batch: ScheduledBatch) -> None:
        assert 0 < batch.num_tokens <= self.config.max_batch_tokens
        assert 0 < len(batch.rows) <= self.config.max_batch_rows
        for row in batch.rows:
            request = self.requests[row.request_id]
            last = request.num_prompt_tokens + request.max_tokens - 2  # the last token is never computed
            assert row.start + row.num_tokens - 1 <= last, f"{row} is more than max_tokens {request.max_tokens} need"

    def check_end(self) -> None:
        core = self.driver.core
        assert (core.num_running, core.num_waiting, core.num_in_flight) == (0, 0, 0)
        assert core.num_available_blocks == core.num_blocks
        assert core.num_cached_tokens == sum(request.num_cached_tokens for request in self.requests.values())
        assert sorted(self.driver.answers) == sorted(self.requests)
        for request_id, request in self.requests.items():
            self._check_answer(request, self.driver.answers[request_id])
        for request, refusal in self.refused:
            num_needed = request.num_prompt_tokens + (request.sampling.max_tokens or 1)
            can_fit = num_needed <= self.executor.info.max_context
            assert refusal.is_retryable == can_fit, "what can never fit is refused for good, and nothing else"

    def _check_answer(self, request: Request, answer: Answer) -> None:
        assert answer.last is not None, f"{request.request_id} never ended"
        tokens, reason = expected_tokens(request, VOCAB)
        assert answer.token_ids == request.output_token_ids == tokens[: len(answer.token_ids)]
        if answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert (answer.token_ids, answer.finish_reason) == (tokens, reason)
            assert answer.last.stop_token_id == (tokens[-1] if reason is FinishReason.STOP else None)
        elif answer.finish_reason is FinishReason.ERROR:
            assert request.request_id in self.executor.errors or self.failing_steps
        else:
            assert self.abort_rate > 0


class FlakyKVCacheManager(KVCacheManager):
    rng: random.Random
    failure_rate: float
    num_failures = 0

    def allocate(self, request: Request, num_tokens: int, headroom: int = 0) -> Grant | None:
        if self.rng.random() < self.failure_rate:
            self.num_failures += 1
            return None
        return super().allocate(request, num_tokens, headroom)


def check_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            Life(seed).run().check_end()
        except Exception as error:
            command = f"HEADWAY_SEED={seed} python -m pytest {os.path.relpath(__file__)}"
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\nreplay with: {command}")


@pytest.mark.skipif("HEADWAY_SEED" in os.environ, reason="HEADWAY_SEED replays one seed")
@pytest.mark.parametrize("part", range(4))
def test_random_lives(part):
    check_seeds(range(part, NUM_SEEDS, 4))


@pytest.mark.long
@pytest.mark.skipif("HEADWAY_SEED" in os.environ, reason="HEADWAY_SEED replays one seed")
def test_many_more_random_lives():
    check_seeds(range(NUM_SEEDS, NUM_SEEDS + NUM_SEEDS_LONG))


@pytest.mark.skipif("HEADWAY_SEED" not in os.environ, reason="set HEADWAY_SEED to replay one seed")
def test_replay():
    Life(int(os.environ["HEADWAY_SEED"])).run().check_end()


def test_the_same_seed_gives_the_same_decisions():
    for seed in range(100):
        first, second = Life(seed).run(), Life(seed).run()
        assert first.executor.batches == second.executor.batches, f"seed {seed}"


def test_the_lives_meet_what_they_are_meant_to_meet():
    """A random test that never preempts, aborts, stops or fails would prove nothing."""
    lives = [Life(seed).run() for seed in range(300)]
    reasons = {answer.finish_reason for life in lives for answer in life.driver.answers.values()}
    assert reasons == set(FinishReason)
    assert sum(life.driver.core.num_preemptions for life in lives) > 100
    refusals = Counter(refusal.reason for life in lives for _, refusal in life.refused)
    assert set(refusals) >= set(RefusalReason) - {RefusalReason.EMPTY_PROMPT, RefusalReason.NO_OUTPUT}
    assert sum(life.kv.num_failures for life in lives) > 100
    assert any(preempted_in_flight(life.executor) for life in lives)
    assert sum(request.num_cached_tokens for life in lives for request in life.requests.values()) > 1000
    assert sum(life.driver.core.num_evictions for life in lives) > 100
    for kind, least in (("save", 1000), ("load", 80), ("failed", 80)):
        assert sum(life.driver.core.disk_transfers.get(kind, 0) for life in lives) > least, kind
    assert sum(life.executor.num_spoilt for life in lives) > 4, "of requests that were given blocks not loaded"


def preempted_in_flight(executor: FakeExecutor) -> bool:
    """Whether some request was released within ``max_in_flight`` steps of a row of its own and later came back."""
    admissions = [new.request_id for batch in executor.batches for new in batch.admitted]
    returned = {request_id for request_id in admissions if admissions.count(request_id) > 1}
    for earlier, batch in zip(executor.batches, islice(executor.batches, 1, None), strict=False):
        if returned.intersection(batch.released).intersection(row.request_id for row in earlier.rows):
            return True
    return False
