"""Decisions are a function of the calls: what one engine was told and when, told to another, gives the same batches."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from fakes import FakeExecutor, make_info
from headway.config import EngineConfig, MemoryConfig, SchedulerConfig
from headway.core.engine_core import EngineCore, InFlightStep
from headway.core.request import FinishReason, Request, SamplingParams

INFO = make_info(num_blocks=14, block_size=3, max_batch_tokens=11, max_batch_rows=4, vocab_size=30)
CONFIG = SchedulerConfig(max_in_flight=2)


@dataclass(frozen=True)
class Call:
    """One call of the core. ``arguments`` are values, never objects that the core changes."""

    name: str
    now: float
    arguments: tuple[Any, ...] = ()


class Player:
    """A fresh core, told one call after another. ``answers`` is everything it returned."""

    def __init__(self) -> None:
        self.executor = FakeExecutor(INFO)
        self.core = EngineCore(self.executor, EngineConfig(CONFIG, MemoryConfig("none", 0.0), max_waiting_requests=5))
        self.in_flight: list[InFlightStep] = []
        self.answers: list[Any] = []

    def play(self, call: Call) -> None:
        self.answers.append(getattr(self, call.name)(call.now, *call.arguments))

    def add(self, now: float, request_id: str, prompt: tuple[int, ...], sampling: SamplingParams, eos: int) -> Any:
        return self.core.add_request(Request(request_id, prompt, sampling, frozenset({eos})), now)

    def abort(self, now: float, request_id: str, reason: FinishReason) -> Any:
        return self.core.abort_request(request_id, now, reason)

    def begin(self, now: float) -> Any:
        step = self.core.begin_step(now)
        if step is not None:
            self.in_flight.append(step)
        return None if step is None else step.batch

    def finish(self, now: float) -> Any:
        step = self.in_flight.pop(0)
        return self.core.finish_step(step, step.handle.result(), now)

    def fail(self, now: float) -> Any:
        step = self.in_flight.pop(0)
        step.handle.result()
        return self.core.fail_step(step, "made to fail", now)


def record(seed: int) -> tuple[list[Call], Player]:
    """A random life of an engine, driven by what a driver sees, with every call written down."""
    rng, player, calls, now, num_added = random.Random(seed), Player(), [], 0.0, 0
    while len(calls) < 300:
        now += rng.random()
        kinds = ["begin", "begin", "add", "abort"] + (["finish"] * 6 + ["fail"] if player.in_flight else [])
        kind = rng.choices(kinds, [0.1 if kind in ("fail", "abort") else 1.0 for kind in kinds])[0]
        arguments: tuple[Any, ...] = ()
        if kind == "add":
            num_added += 1
            prompt = tuple(rng.choices(range(30), k=rng.randint(0, 45)))
            sampling = SamplingParams(max_tokens=rng.choice([None, rng.randint(0, 20)]), seed=rng.getrandbits(32))
            arguments = (f"r{num_added}", prompt, sampling, rng.randrange(30))
        elif kind == "abort":
            arguments = (f"r{rng.randint(1, num_added + 1)}", rng.choice([FinishReason.ABORT, FinishReason.STOP]))
        calls.append(Call(kind, now, arguments))
        player.play(calls[-1])
    return calls, player


@pytest.mark.parametrize("seed", range(30))
def test_a_recording_replayed_on_a_fresh_core_gives_the_same_decisions(seed: int) -> None:
    calls, first = record(seed)
    second = Player()
    for call in calls:
        second.play(call)
    assert second.executor.batches == first.executor.batches
    assert second.answers == first.answers


def test_the_recordings_hold_what_they_are_meant_to_hold() -> None:
    players = [record(seed)[1] for seed in range(30)]
    assert sum(player.core.num_preemptions for player in players) > 30
    names = {call.name for seed in range(30) for call in record(seed)[0]}
    assert names == {"add", "abort", "begin", "finish", "fail"}
    refusals = {
        answer.refusal.reason.value
        for player in players
        for answer in player.answers
        if getattr(answer, "refusal", None) is not None
    }
    assert refusals == {"empty_prompt", "no_output", "too_long", "queue_full"}
