"""Turns, heats and failures, with arms that answer at once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from comparison.processes import EngineFailed
from comparison.rounds import Comparison, Work, contenders, rotated

DECODE = Work("decode", 2, 32, 8, "decode")
START = Work("start", 1, 32, 1, "start")


@dataclass(eq=False)
class FakeArm:
    """``speed`` is its tokens a second; it fails at its ``fails_at``-th question, counted from 1."""

    engine: str
    format: str
    log: list[str]
    speed: float = 100.0
    fails_at: int | None = None
    num_closed: int = field(default=0)

    def __str__(self) -> str:
        return f"{self.engine} {self.format}"

    def start(self, threads: int) -> "FakeArm":
        self.num_questions = 0
        return self

    def ask(self, question: Any) -> Any:
        self.num_questions += 1
        if self.num_questions == self.fails_at:
            raise EngineFailed("it fell over")
        if question == "facts":
            return {"version": "1"}
        self.log.append(str(self))
        return {"prefill_s": 1.0, "decode_s": 1.0, "num_decoded": self.speed}

    def close(self) -> None:
        self.num_closed += 1


def comparison(arms: list[Any], rounds: int, calibrate: Callable[[], dict[str, float]] = dict) -> Comparison:
    return Comparison(arms, 2, rounds, calibrate, lambda what: None, {})


def test_figures() -> None:
    timings = {"prefill_s": 2.0, "decode_s": 3.0, "num_decoded": 12.0}
    assert Work("w", 4, 100, 5, "prefill").tokens_per_s(timings) == 200
    assert Work("w", 4, 100, 5, "decode").tokens_per_s(timings) == 4
    assert Work("w", 4, 100, 5, "total").tokens_per_s(timings) == 84


def test_the_order_rotates_and_every_run_is_calibrated() -> None:
    log: list[str] = []
    arms = [FakeArm("headway", "Q4_1", log), FakeArm("llama.cpp", "Q4_0", log), FakeArm("vllm", "bf16", log)]
    compared = comparison(arms, 3, lambda: log.append("calibrated") or {"read_gb_per_s": 1.0})  # type: ignore[func-returns-value]
    [result] = compared.measure([DECODE])
    first, second, third = (str(arm) for arm in arms)
    heats, turns = log[:6], log[8:]
    assert heats == [first, first, second, second, third, third]  # each is warmed up, then runs alone
    assert turns[::2] == ["calibrated"] * 9
    assert turns[1::2] == [first, second, third, second, third, first, third, first, second]
    assert result["rounds"][0] == {
        "figures": dict.fromkeys((first, second, third), 100.0),
        "calibrations": {arm: {"read_gb_per_s": 1.0} for arm in (first, second, third)},
    }


def test_a_format_far_behind_its_engines_best_runs_only_the_heat() -> None:
    log: list[str] = []
    arms = [
        FakeArm("headway", "Q4_1", log, 10),
        FakeArm("llama.cpp", "Q4_1", log, 84),
        FakeArm("llama.cpp", "Q4_0", log, 86),
        FakeArm("llama.cpp", "Q8_0", log, 100),
    ]
    compared = comparison(arms, 2)
    [result] = compared.measure([DECODE])
    assert set(result["heat"]) == {str(arm) for arm in arms}
    for number in result["rounds"]:
        assert set(number["figures"]) == {"headway Q4_1", "llama.cpp Q4_0", "llama.cpp Q8_0"}


def test_in_a_heat_of_times_the_shortest_is_best() -> None:
    slow, fast = FakeArm("vllm", "bf16", []), FakeArm("vllm", "int8", [])
    assert contenders(START, {slow: 2.0, fast: 1.0}, [slow, fast]) == [fast]  # type: ignore[dict-item, list-item]


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_an_arm_that_fails_is_noted_and_the_others_go_on(fails_at: int) -> None:
    """At its warm-up, its facts, the heat or first round, the second round."""
    sound, broken = FakeArm("headway", "Q4_1", []), FakeArm("vllm", "bf16", [], fails_at=fails_at)
    compared = comparison([broken, sound], 3)
    [result] = compared.measure([DECODE])
    assert compared.did_not_run == {"vllm bf16": "it fell over"}
    assert compared.facts["headway Q4_1"] == {"version": "1"}
    assert all("headway Q4_1" in number["figures"] for number in result["rounds"])
    assert "vllm bf16" not in result["rounds"][-1]["figures"]


def test_for_the_start_a_new_process_is_started_and_ended_each_time() -> None:
    arm = FakeArm("headway", "Q4_1", [])
    compared = comparison([arm], 3)
    [result] = compared.measure([START])
    assert result["unit"] == "s"
    assert len(result["rounds"]) == 3
    assert arm.num_closed == 5  # the heat and three rounds, and the process that was ready for other works
    compared.close()
    assert arm.num_closed == 5


def test_only_the_arms_that_a_work_needs_are_alive() -> None:
    log: list[str] = []
    slow, fast = FakeArm("llama.cpp", "Q4_1", log, 10), FakeArm("llama.cpp", "Q8_0", log, 100)
    compared = comparison([slow, fast], 1)
    [_] = compared.measure([DECODE])
    assert (slow.num_closed, fast.num_closed) == (1, 0)
    compared.close()
    assert (slow.num_closed, fast.num_closed) == (1, 1)


def test_rotated() -> None:
    assert [rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]  # type: ignore[arg-type]
    assert rotated([], 1) == []
