"""Servers under the same open-loop load in turns, at rising rates until they no longer keep up."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from comparison.engines import Arm
from comparison.processes import EngineFailed, ServerProcess
from comparison.rounds import CONTENDS, rotated
from headway.bench.client import Server
from headway.bench.measures import GOODPUT_ATTAINMENT, RunSummary, goodput
from headway.bench.open_loop import Progress
from headway.bench.sweep import Judgement, ServerBench, generated_plans
from headway.bench.workload import Lengths
from headway.errors import HeadwayError

MISSES = 2  # a server is done for the round once it has missed the objectives at so many rates


@dataclass(frozen=True)
class LoadPlan:
    """Poisson arrivals for ``duration_s`` at each of ``rates``, with log-normal lengths around the means given."""

    rates: Sequence[float]
    duration_s: float
    input_tokens: int
    output_tokens: int
    spread: float
    judgement: Judgement
    timeout_s: float

    def bench(self, url: str, rate: float, seed: int) -> ServerBench:
        lengths = Lengths(self.input_tokens, self.spread), Lengths(self.output_tokens, self.spread)
        plans = generated_plans([rate], 1.0, self.duration_s, *lengths, seed)
        return ServerBench(Server.at(url), plans, self.judgement, self.timeout_s)


@dataclass
class GoodputRound:
    """The runs of each server in one round; all get the requests that ``seed`` makes for a rate."""

    seed: int
    runs: dict[str, list[RunSummary]] = field(default_factory=dict)

    def goodput(self, server: str) -> float:
        """The highest rate that met the objectives; 0 when none did, or no run was sound."""
        best = goodput(self.runs.get(server, []))
        return best.rate if best is not None else 0.0

    def is_done(self, server: str) -> bool:
        missed = [run for run in self.runs.get(server, []) if run.attainment < GOODPUT_ATTAINMENT]
        return len(missed) >= MISSES


@dataclass
class GoodputComparison:
    """Servers that are all up, and stopped while it is not their turn. One that fails is left out from then on.

    ``on_progress`` is told where a run is, ``on_run`` what it found.
    """

    servers: dict[Arm, ServerProcess]
    plan: LoadPlan
    on_progress: Callable[[str], None]
    on_run: Callable[[str], None]
    did_not_run: dict[str, str]

    def run(self, seed: int) -> GoodputRound:
        """One round: every rate on every server that still keeps up, in an order that rotates from rate to rate."""
        found = GoodputRound(seed)
        for number, rate in enumerate(self.plan.rates):
            for arm in rotated(list(self.servers), number):
                if not found.is_done(str(arm)):
                    self._run_one(arm, rate, found)
        self._drop_slow_formats(found)
        return found

    def _drop_slow_formats(self, found: GoodputRound) -> None:
        """What is far behind another format of its engine is not measured again."""
        for arm in list(self.servers):
            same_engine = [other for other in self.servers if other.engine == arm.engine]
            if found.goodput(str(arm)) < CONTENDS * max(found.goodput(str(other)) for other in same_engine):
                self.servers.pop(arm).close()

    def _run_one(self, arm: Arm, rate: float, found: GoodputRound) -> None:
        process = self.servers[arm]
        process.resume()
        bench = self.plan.bench(process.url, rate, found.seed)

        def progress_for(_: object) -> Callable[..., None]:
            def update(progress: Progress) -> None:
                self.on_progress(f"{arm}, {rate:g}/s: {progress.num_done} of {progress.num_planned} answered")

            return update

        try:
            _, [summary] = asyncio.run(bench.run(None, progress_for))
        except (HeadwayError, OSError) as error:
            self.did_not_run[str(arm)] = str(process.failure() if process.has_ended else EngineFailed(str(error)))
            self.servers.pop(arm).close()
            return
        process.pause()
        found.runs.setdefault(str(arm), []).append(summary)
        self.on_run(f"{arm}: {in_one_line(summary)}")


def in_one_line(run: RunSummary) -> str:
    errors = "".join(f", {count} failed: {kind}" for kind, count in run.errors.items())
    return (
        f"{run.rate:g}/s, {'VOID' if run.void else 'attained'} {run.attainment:.0%}, TTFT p50 {run.ttft.p50 * 1e3:.0f} "
        f"p90 {run.ttft.p90 * 1e3:.0f} ms, TPOT p50 {run.tpot.p50 * 1e3:.1f} p90 {run.tpot.p90 * 1e3:.1f} ms, client "
        f"late p99 {run.lag.send.p99 * 1e3:.1f} ms{errors}"
    )
