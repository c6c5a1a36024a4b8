"""Goodput of scheduling policies on recorded mixes of requests: chat, code and long documents.

    python benchmarks/mixes.py DATA [MODEL] [--requests 100] [--virtual]

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


@dataclass(frozen=True)
class Mix:
    """``shrink`` divides lengths; ``rates`` are of requests a second."""

    name: str
    trace: str
    objective: Objective
    rates: tuple[float, ...]
    first: int = 0  # request of the trace
    shrink: int = 1
    is_poisson: bool = False  # arrivals, in place of the trace's

    def requests(self, data: Path, count: int, max_context: int) -> list[PlannedRequest]:
        wanted = [self._cut(r, max_context) for r in read_trace(data / self.trace)[self.first : self.first + count]]
        moments = arrivals(count, 1.0, random.Random(0)) if self.is_poisson else [r.at_s - wanted[0].at_s for r in wanted]
        return [replace(request, at_s=at_s) for request, at_s in zip(wanted, moments, strict=True)]

    def _cut(self, request: PlannedRequest, max_context: int) -> PlannedRequest:
        output = max(1, min(request.num_output_tokens, max_context // 4))
        prompt = max(1, min(request.num_input_tokens // self.shrink, max_context - output - 1))
        return replace(request, num_input_tokens=prompt, num_output_tokens=output)


MIXES = (
    Mix(
        "chat",
        "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
        Objective(ttft_s=2.0, tpot_s=0.05),
        (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.4),
    ),
    Mix(
        "code",
        "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
        Objective(ttft_s=2.0, tpot_s=0.05),
        (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
        first=2000,
        shrink=2,
    ),
    Mix(
        "documents",
        "mooncake_fast25/conversation_trace_ranges.csv",
        Objective(ttft_s=10.0, tpot_s=0.05),
        (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6),
        shrink=4,
        is_poisson=True,
    ),
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


def measure(policies: Policies, mix: Mix, requests: list[PlannedRequest]) -> Iterator[dict[str, Any]]:
    missed = dict.fromkeys(policies.names(), 0)
    for rate in track(mix.rates, mix.name, transient=True):
        arrivals = [
            Arrival(r.at_s, r.num_input_tokens, r.num_output_tokens, mix.objective) for r in at_rate(requests, rate)
        ]
        for name in policies.names():
            if missed[name] < MISSES:
                run = summary(mix, rate, name, policies.run(name, arrivals))
                missed[name] += run["attainment"] < GOODPUT_ATTAINMENT
                yield run


def summary(mix: Mix, rate: float, policy: str, served: list[Served]) -> dict[str, Any]:
    ttft = [one.ttft_s for one in served if one.ttft_s is not None]
    wanted = mix.objective
    return {
        "mix": mix.name,
        "rate": rate,
        "policy": policy,
        "attainment": sum(one.meets(wanted.ttft_s, wanted.tpot_s) for one in served) / len(served),
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
    parser.add_argument("--mixes", default=",".join(mix.name for mix in MIXES))
    parser.add_argument("--virtual", action="store_true")
    args = parser.parse_args()
    config = load_config(overrides={"model.name": args.model, "cache.memory_bytes": KV_BYTES})
    executor = load_model(config).make_executor()
    policies = Policies(executor, config.scheduler, calibrated(executor), args.virtual)
    runs = []
    for mix in (mix for mix in MIXES if mix.name in args.mixes.split(",")):
        requests = mix.requests(args.data, args.requests, executor.info.max_context)
        runs += list(measure(policies, mix, requests))
    Console().print(table(runs, policies.names()))
    result = {"command": recorded_command(), "machine": machine(), "is_virtual": args.virtual, "runs": runs}
    suffix = "-virtual" if args.virtual else ""
    path = RESULTS / f"mixes-{args.model.replace('/', '-')}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
