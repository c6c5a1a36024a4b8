"""A server measured at one rate after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.bench.client import Api, Server, served_model
from headway.bench.measures import Objectives, RunSummary, summarise
from headway.bench.open_loop import OnProgress, count_tokens, prepare, run_load
from headway.bench.workload import Lengths, PlannedRequest, TokenCount, at_rate, mean_rate, plan_requests


@dataclass(frozen=True, slots=True)
class RatedPlan:
    rate: float
    seed: str
    requests: list[PlannedRequest]


def generated_plans(
    rates: Sequence[float], cv: float, duration_s: float, inputs: Lengths, outputs: Lengths, seed: int
) -> list[RatedPlan]:
    seeds = [f"{seed}/{rate:g}" for rate in rates]
    return [
        RatedPlan(rate, seed, plan_requests(rate, cv, duration_s, inputs, outputs, seed))
        for rate, seed in zip(rates, seeds, strict=True)
    ]


def trace_plans(
    trace: Sequence[PlannedRequest], rates: Sequence[float], duration_s: float | None, seed: int
) -> list[RatedPlan]:
    """The trace stretched to each of ``rates``, or at its own; then the part that falls within ``duration_s``."""
    plans = []
    for rate in rates or [mean_rate(trace)]:
        requests = [r for r in at_rate(trace, rate) if duration_s is None or r.at_s < duration_s]
        plans.append(RatedPlan(rate, f"{seed}/{rate:g}", requests))
    return plans


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is asked of the server, and of the client that asks."""

    objectives: Objectives
    max_lag_s: float

    @classmethod
    def of(cls, objectives: Objectives, max_lag_s: float | None) -> "Judgement":
        """By default a client may be late by a tenth of the TTFT objective and half of the TPOT objective."""
        if max_lag_s is None:
            max_lag_s = min(objectives.ttft_s / 10, objectives.tpot_s / 2)
        return cls(objectives, max_lag_s)


@dataclass(frozen=True, slots=True)
class ServerBench:
    """Everything that is decided before the first request leaves. ``timeout_s`` bounds each request."""

    server: Server
    plans: Sequence[RatedPlan]
    judgement: Judgement
    timeout_s: float
    is_chat: bool = False
    ignore_eos: bool = True

    async def run(
        self, model: str | None, progress_for: Callable[[RatedPlan], OnProgress]
    ) -> tuple[str, list[RunSummary]]:
        """The model asked (by default the server's first) and one run for each plan.

        Between two runs the server is idle, since each waits for its answers. BenchError when it does not answer.
        """
        model = model or await served_model(self.server, self.timeout_s)
        api = Api(self.server, model, self.is_chat, self.ignore_eos)
        count = await count_tokens(api, self.plans[0].seed, self.timeout_s)
        return model, [await self._run_one(api, plan, count, progress_for(plan)) for plan in self.plans]

    async def _run_one(self, api: Api, plan: RatedPlan, count: TokenCount, on_progress: OnProgress) -> RunSummary:
        requests = prepare(api, plan.requests, count, plan.seed)
        recording = await run_load(api, requests, self.timeout_s, on_progress)
        return summarise(
            plan.rate,
            recording.records,
            recording.loop_lag_s,
            recording.duration_s,
            self.judgement.objectives,
            self.judgement.max_lag_s,
        )
