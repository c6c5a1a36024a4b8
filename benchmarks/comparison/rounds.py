"""Engines measured in turns: the same work, one after another, in an order that rotates from round to round."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from comparison.engines import Arm
from comparison.processes import ArmProcess, EngineFailed

Answer = TypeVar("Answer")
CONTENDS = 0.85  # of its engine's best speed in the heat: a slower format is not measured again


@dataclass(frozen=True)
class Work:
    """``batch`` random prompts of ``prompt`` tokens, each answered with ``output`` tokens; the first of these comes
    with the prompt.

    ``figure`` is what is reported: tokens a second of the "prefill", the "decode" or in "total", or the seconds from
    the "start" of a process to the answer.
    """

    name: str
    batch: int
    prompt: int
    output: int
    figure: str

    @property
    def question(self) -> dict[str, int]:
        return {"batch": self.batch, "prompt": self.prompt, "output": self.output}

    @property
    def is_time(self) -> bool:
        return self.figure == "start"

    def tokens_per_s(self, timings: dict[str, float]) -> float:
        if self.figure == "prefill":
            return self.batch * self.prompt / timings["prefill_s"]
        if self.figure == "decode":
            return timings["num_decoded"] / timings["decode_s"]
        return self.batch * (self.prompt + self.output) / (timings["prefill_s"] + timings["decode_s"])


WORKS = (
    Work("start to first token, cached", 1, 32, 1, "start"),
    Work("prefill, 512 tokens", 1, 512, 1, "prefill"),
    Work("decode, 1 request", 1, 32, 96, "decode"),
    Work("decode, 8 requests", 8, 32, 48, "decode"),
    Work("decode, 32 requests", 32, 32, 32, "decode"),
    Work("32 x (256 in + 64 out), all tokens", 32, 256, 64, "total"),
)
QUICK_WORKS = (
    Work("start to first token, cached", 1, 32, 1, "start"),
    Work("prefill, 128 tokens", 1, 128, 1, "prefill"),
    Work("decode, 4 requests", 4, 32, 8, "decode"),
)
WARM_UP = {"batch": 8, "prompt": 64, "output": 4}


@dataclass
class Comparison:
    """Owns a process for each arm. An arm that fails is noted in ``did_not_run`` and left out from then on.

    ``calibrate`` measures the machine, before each run of an arm; ``on_run`` is told of each run before it begins.
    """

    arms: list[Arm]
    threads: int
    rounds: int
    calibrate: Callable[[], dict[str, float]]
    on_run: Callable[[str], None]
    did_not_run: dict[str, str]
    _processes: dict[Arm, ArmProcess] = field(default_factory=dict)

    def start(self) -> dict[str, Any]:
        """Starts every arm and runs each a little. What each says of itself, by arm."""
        facts = {}
        for arm in list(self.arms):
            self.on_run(f"starting {arm}")
            found = self._unless_it_fails(arm, self._start)
            if found is not None:
                facts[str(arm)] = found
        return facts

    def measure(self, works: Sequence[Work]) -> Iterator[dict[str, Any]]:
        for work in works:
            heat = dict(self._turns(work, self.arms))
            rounds = []
            for number in range(self.rounds):
                rounds.append(self._round(work, rotated(contenders(work, heat, self.arms), number)))
            yield {
                "work": work.name,
                "unit": "s" if work.is_time else "tokens/s",
                "heat": {str(arm): figure for arm, figure in heat.items()},
                "rounds": rounds,
            }

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _round(self, work: Work, arms: Sequence[Arm]) -> dict[str, Any]:
        calibrations: dict[str, dict[str, float]] = {}
        figures = {str(arm): figure for arm, figure in self._turns(work, arms, calibrations)}
        return {"figures": figures, "calibrations": calibrations}

    def _turns(
        self, work: Work, arms: Sequence[Arm], calibrations: dict[str, dict[str, float]] | None = None
    ) -> Iterator[tuple[Arm, float]]:
        for arm in list(arms):
            self.on_run(f"{work.name}: {arm}")
            if calibrations is not None:
                calibrations[str(arm)] = self.calibrate()
            figure = self._unless_it_fails(arm, lambda arm: self._figure(arm, work))
            if figure is not None:
                yield arm, figure

    def _start(self, arm: Arm) -> dict[str, Any]:
        process = self._processes[arm] = arm.start(self.threads)
        process.ask(WARM_UP)
        facts: dict[str, Any] = process.ask("facts")
        return facts

    def _figure(self, arm: Arm, work: Work) -> float:
        if not work.is_time:
            return work.tokens_per_s(self._processes[arm].ask(work.question))
        started = time.perf_counter()
        process = arm.start(self.threads)
        try:
            process.ask(work.question)
            return time.perf_counter() - started
        finally:
            process.close()

    def _unless_it_fails(self, arm: Arm, step: Callable[[Arm], Answer]) -> Answer | None:
        """What ``step`` makes of the arm; None for one that failed, which is left out from now on."""
        try:
            return step(arm)
        except (EngineFailed, OSError) as error:
            self.did_not_run[str(arm)] = str(error)
            self.arms.remove(arm)
            return None


def contenders(work: Work, heat: dict[Arm, float], arms: Sequence[Arm]) -> list[Arm]:
    """Of each engine the formats that may be its best for this work, by one run of each."""
    speeds = {arm: 1 / figure if work.is_time else figure for arm, figure in heat.items() if arm in arms}
    best: dict[str, float] = {}
    for arm, speed in speeds.items():
        best[arm.engine] = max(speed, best.get(arm.engine, 0.0))
    return [arm for arm, speed in speeds.items() if speed >= CONTENDS * best[arm.engine]]


def rotated(arms: Sequence[Arm], number: int) -> list[Arm]:
    first = number % len(arms) if arms else 0
    return [*arms[first:], *arms[:first]]
