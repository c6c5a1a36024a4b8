"""Goodput of scheduling policies on recorded mixes of requests: chat, code and long documents.

    python benchmarks/mixes.py DATA [MODEL] [--requests 100] [--virtual] [--mix TEXT] [--rates 0.6,0.9]

DATA is a folder with public traces: ``azure_llm_2023`` (chat, code) and ``mooncake_fast25`` (long documents), both
stretched in time to each rate. Lengths are cut to the model's context, those of documents divided by 4 before. Two
policies of the same engine in turns, at rising rates: order of arrival with chunks of a fixed size and no objective,
and Headway's own. Goodput is the highest rate of which 90 % have their first token and their mean time per token in
time. ``--virtual`` runs the same on a clock that predicted steps move, in seconds. Prints a table and writes
benchmarks/results/mixes-MODEL.json (mixes-MODEL-virtual.json).
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from comparison.command_line import recorded_command
from comparison.core_load import Arrival, CoreLoad, PredictedExecutor, Served, VirtualClock, WallClock
from headway.bench.measures import GOODPUT_ATTAINMENT, percentile
from headway.bench.report import machine
from headway.bench.trace import read_trace
from headway.bench.workload import PlannedRequest, arrivals, at_rate
from headway.config import EngineConfig, SchedulerConfig, load_config
from headway.core.executor import Executor
from headway.core.request import Objective
from headway.core.step_time import StepTimes
from headway.engine.calibration import calibrated
from headway.worker.load import load_model

RESULTS = Path(__file__).resolve().parent / "results"
MISSES = 2  # a policy is done once it has missed the objective at so many rates
KV_BYTES = 4 << 30  # so that time is what is short, not memory
CHUNKS = (512, 128)  # of the fixed policy


_RATES = (0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4, 2.7, 3.0)


@dataclass(frozen=True)
class Kind:
    """Requests of one trace from ``first`` on. ``shrink`` divides lengths, ``is_poisson`` replaces arrivals that are
    recorded in steps of seconds."""

    trace: str
    objective: Objective
    first: int = 0
    shrink: int = 1
    is_poisson: bool = False

    def requests(self, data: Path, count: int, max_context: int) -> list[PlannedRequest]:
        wanted = [self._cut(r, max_context) for r in read_trace(data / self.trace)[self.first : self.first + count]]
        moments = arrivals(count, 1.0, random.Random(0)) if self.is_poisson else [r.at_s for r in wanted]
        return [replace(request, at_s=at - moments[0]) for request, at in zip(wanted, moments, strict=True)]

    def _cut(self, request: PlannedRequest, max_context: int) -> PlannedRequest:
        output = max(1, min(request.num_output_tokens, max_context // 4))
        prompt = max(1, min(request.num_input_tokens // self.shrink, max_context - output - 1))
        return replace(request, num_input_tokens=prompt, num_output_tokens=output)


KINDS = {
    "chat": Kind("azure_llm_2023/AzureLLMInferenceTrace_conv.csv", Objective(ttft_s=1.0, tpot_s=0.05), 2000, shrink=2),
    "code": Kind("azure_llm_2023/AzureLLMInferenceTrace_code.csv", Objective(ttft_s=2.0, tpot_s=0.05), 2000, shrink=2),
    "documents": Kind(
        "mooncake_fast25/conversation_trace_ranges.csv",
        Objective(ttft_s=20.0, tpot_s=0.05),
        shrink=4,
        is_poisson=True,
    ),
}


@dataclass(frozen=True)
class Mix:
    """So many of a hundred requests of each kind, each kind with its own arrivals; ``rates`` are of all together."""

    shares: dict[str, int]
    rates: tuple[float, ...] = _RATES

    @property
    def name(self) -> str:
        return ", ".join(f"{share} % {kind}" for kind, share in self.shares.items())

    def arrivals(self, data: Path, count: int, max_context: int, rate: float) -> list[Arrival]:
        planned = []
        for name, share in self.shares.items():
            kind = KINDS[name]
            requests = kind.requests(data, count * share // 100, max_context)
            planned += [
                Arrival(request.at_s, request.num_input_tokens, request.num_output_tokens, kind.objective)
                for request in at_rate(requests, rate * share / 100)
            ]
        return sorted(planned, key=lambda arrival: arrival.at_s)


MIXES = (
    Mix({"chat": 100}),
    Mix({"code": 100}),
    Mix({"chat": 70, "code": 30}),
    Mix({"chat": 90, "documents": 10}),
    Mix({"chat": 60, "code": 30, "documents": 10}),
)


@dataclass
class Policies:
    """The two contenders over one device."""

    executor: Executor
    scheduler: SchedulerConfig
    step_times: StepTimes
    is_virtual: bool

    def names(self) -> list[str]:
        return [*(f"order of arrival, chunks of {chunk}" for chunk in CHUNKS), "headway"]

    def run(self, name: str, arrivals: list[Arrival]) -> list[Served]:
        executor = PredictedExecutor(self.executor.info, self.step_times) if self.is_virtual else self.executor
        clock = VirtualClock if self.is_virtual else WallClock
        if name == "headway":
            return CoreLoad(executor, EngineConfig(self.scheduler), self.step_times, clock).run(arrivals)
        chunk = int(name.split()[-1])
        fixed = replace(self.scheduler, policy="fcfs", max_batch_tokens=chunk)
        return CoreLoad(executor, EngineConfig(fixed), None, clock).run(arrivals)


def measure(policies: Policies, mix: Mix, data: Path, count: int) -> Iterator[dict[str, Any]]:
    missed = dict.fromkeys(policies.names(), 0)
    for rate in track(mix.rates, mix.name, transient=True):
        planned = mix.arrivals(data, count, policies.executor.info.max_context, rate)
        for name in policies.names():
            if missed[name] < MISSES:
                run = summary(mix, rate, name, policies.run(name, planned))
                missed[name] += run["attainment"] < GOODPUT_ATTAINMENT
                yield run


def summary(mix: Mix, rate: float, policy: str, served: list[Served]) -> dict[str, Any]:
    ttft = [one.ttft_s for one in served if one.ttft_s is not None]
    return {
        "mix": mix.name,
        "rate": rate,
        "policy": policy,
        "attainment": sum(one.meets_objective for one in served) / len(served),
        "ttft_p50_s": percentile(ttft, 0.5),
        "ttft_p90_s": percentile(ttft, 0.9),
        "tpot_p90_s": percentile([one.tpot_s for one in served], 0.9),
    }


def goodput(runs: list[dict[str, Any]], mix: str, policy: str) -> float:
    """The highest rate with enough attained."""
    kept = (r["rate"] for r in runs if (r["mix"], r["policy"]) == (mix, policy) and r["attainment"] >= 0.9)
    return max(kept, default=0.0)


def table(runs: list[dict[str, Any]], names: list[str]) -> Table:
    shown = Table("mix", *names, "headway / best other", title="Requests a second of which 90 % are in time")
    for mix in dict.fromkeys(run["mix"] for run in runs):
        rates = [goodput(runs, mix, name) for name in names]
        best_other = max(rates[:-1])
        shown.add_row(mix, *(f"{rate:g}" for rate in rates), f"{rates[-1] / best_other:.2f}" if best_other else "-")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--mix", default="", help="only mixes whose name has this in it")
    parser.add_argument("--rates", type=lambda text: tuple(map(float, text.split(","))), default=_RATES)
    args = parser.parse_args()
    config = load_config(overrides={"model.name": args.model, "cache.memory_bytes": KV_BYTES})
    executor = load_model(config).make_executor()
    policies = Policies(executor, config.scheduler, calibrated(executor), args.virtual)
    runs = []
    for mix in (replace(mix, rates=args.rates) for mix in MIXES if args.mix in mix.name):
        runs += list(measure(policies, mix, args.data, args.requests))
    Console().print(table(runs, policies.names()))
    result = {"command": recorded_command(), "machine": machine(), "is_virtual": args.virtual, "runs": runs}
    suffix = "-virtual" if args.virtual else ""
    path = RESULTS / f"mixes-{args.model.replace('/', '-')}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
