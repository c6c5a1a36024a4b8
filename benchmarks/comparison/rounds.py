"""Engines measured in turns: the same work, one after another, in an order that rotates from round to round."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from comparison.engines import Arm
from comparison.processes import ArmProcess, EngineFailed

Result = TypeVar("Result")
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
    """Owns the processes of the arms that the work at hand needs: a large model fits in memory only a few times.

    ``calibrate`` measures the machine, before each run that counts; ``on_run`` is told of each run before it begins.
    ``facts`` are what each arm said of itself. An arm that fails is noted in ``did_not_run`` and left out from then on.
    """

    arms: list[Arm]
    threads: int
    rounds: int
    calibrate: Callable[[], dict[str, float]]
    on_run: Callable[[str], None]
    did_not_run: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    _processes: dict[Arm, ArmProcess] = field(default_factory=dict)

    def measure(self, works: Sequence[Work]) -> Iterator[dict[str, Any]]:
        """One run of each work by each arm, alone; then of each work its rounds."""
        heats = self._heats(works)
        for work in works:
            heat = heats[work]
            self._keep([] if work.is_time else contenders(work, heat, self.arms))
            yield {
                "work": work.name,
                "unit": "s" if work.is_time else "tokens/s",
                "heat": {str(arm): figure for arm, figure in heat.items()},
                "rounds": [self._round(work, heat, number) for number in range(self.rounds)],
            }

    def close(self) -> None:
        self._keep([])

    def _heats(self, works: Sequence[Work]) -> dict[Work, dict[Arm, float]]:
        heats: dict[Work, dict[Arm, float]] = {work: {} for work in works}
        for arm in list(self.arms):
            self._keep([arm])
            for work in works:
                figure = self._figure(arm, work) if arm in self.arms else None
                if figure is not None:
                    heats[work][arm] = figure
        return heats

    def _round(self, work: Work, heat: dict[Arm, float], number: int) -> dict[str, Any]:
        figures, calibrations = {}, {}
        for arm in rotated(contenders(work, heat, self.arms), number):
            calibrations[str(arm)] = self.calibrate()
            figure = self._figure(arm, work)
            if figure is not None:
                figures[str(arm)] = figure
        return {"figures": figures, "calibrations": calibrations}

    def _keep(self, arms: Sequence[Arm]) -> None:
        """Ends all other arms and starts those of ``arms`` that are not running."""
        for arm in [arm for arm in self._processes if arm not in arms]:
            self._processes.pop(arm).close()
        for arm in arms:
            if arm not in self._processes:
                self._unless_it_fails(arm, "starting", self._start)

    def _start(self, arm: Arm) -> None:
        process = self._processes[arm] = arm.start(self.threads)
        process.ask(WARM_UP)
        self.facts[str(arm)] = process.ask("facts")

    def _figure(self, arm: Arm, work: Work) -> float | None:
        """None when the arm fails."""
        if work.is_time:
            return self._unless_it_fails(arm, work.name, lambda arm: self._start_s(arm, work))
        return self._unless_it_fails(
            arm, work.name, lambda arm: work.tokens_per_s(self._processes[arm].ask(work.question))
        )

    def _start_s(self, arm: Arm, work: Work) -> float:
        started = time.perf_counter()
        process = arm.start(self.threads)
        try:
            process.ask(work.question)
            return time.perf_counter() - started
        finally:
            process.close()

    def _unless_it_fails(self, arm: Arm, what: str, step: Callable[[Arm], Result]) -> Result | None:
        self.on_run(f"{what}: {arm}")
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
