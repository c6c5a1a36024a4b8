"""How good predictions of the first token are: requests that a deadline would have refused, and what became of them.

    python benchmarks/deadlines.py [MODEL] [--seconds 60] [--deadline 1.0] [--virtual]

Poisson arrivals at a steady part of what the machine can do, every request with the same deadline, which is only noted
(``objective.deadlines = "shadow"``). A false refusal, had it been one, is a request that was expected to be late and
was in time. Prints a table and writes benchmarks/results/deadlines-MODEL.json; ``--virtual`` runs on a clock that
predicted steps move.
"""

import argparse
import json
import random
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from comparison.command_line import recorded_command
from comparison.core_load import Arrival, CoreLoad, PredictedExecutor, Served, VirtualClock, WallClock
from headway.bench.report import machine
from headway.bench.workload import Lengths
from headway.config import EngineConfig, load_config
from headway.core.executor import Executor
from headway.core.request import Objective
from headway.core.step_time import StepTimes
from headway.engine.calibration import calibrated
from headway.worker.load import load_model

RESULTS = Path(__file__).resolve().parent / "results"
PROMPT, OUTPUT = Lengths(300, 0.8), Lengths(60, 0.8)
LOADS = (0.7, 0.9, 1.0)  # of what the machine can do


def arrivals(rate: float, seconds: float, deadline_s: float) -> list[Arrival]:
    rng, planned, at_s = random.Random(1), [], 0.0
    while (at_s := at_s + rng.expovariate(rate)) < seconds:
        objective = Objective(tpot_s=0.05, ttft_s=deadline_s, deadline_s=deadline_s)
        planned.append(Arrival(at_s, PROMPT.draw(rng), OUTPUT.draw(rng), objective))
    return planned


def capacity(load: CoreLoad) -> float:
    served = load.run([replace(arrival, at_s=0.0) for arrival in arrivals(150.0, 1.0, 1e9)])
    return len(served) / max(one.request.last_token_s or 0.0 for one in served)


def summary(served: list[Served], deadline_s: float) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    errors = []
    for one in served:
        predicted, actual = one.request.predicted_ttft_s, one.ttft_s
        if predicted is None or actual is None:
            continue
        expected, was = one.request.is_expected_late, actual > deadline_s
        outcomes[f"expected {'late' if expected else 'in time'}, was {'late' if was else 'in time'}"] += 1
        errors.append(abs(actual - predicted) / max(actual, predicted))
    return {
        "requests": len(served),
        "outcomes": dict(outcomes),
        "false_refusals": outcomes["expected late, was in time"] / len(served),
        "median_error": statistics.median(errors),
        "p90_error": statistics.quantiles(errors, n=10)[-1],
    }


def measured(executor: Executor, times: StepTimes, args: argparse.Namespace) -> dict[str, Any]:
    device = PredictedExecutor(executor.info, times) if args.virtual else executor
    load = CoreLoad(device, EngineConfig(), times, VirtualClock if args.virtual else WallClock)
    most = capacity(load)
    runs = {
        f"{part:g}": summary(load.run(arrivals(part * most, args.seconds, args.deadline)), args.deadline)
        for part in LOADS
    }
    return {"capacity_per_s": most, "deadline_s": args.deadline, "loads": runs}


def table(result: dict[str, Any]) -> Table:
    columns = ("requests", "late", "refused, had it been on", "of these in time", "false refusals", "median error")
    shown = Table("load", *columns, title="Deadlines, in shadow mode")
    for part, run in result["loads"].items():
        counts = Counter(run["outcomes"])
        late = sum(count for name, count in counts.items() if name.endswith("was late"))
        refused = sum(count for name, count in counts.items() if name.startswith("expected late"))
        false = counts["expected late, was in time"]
        cells = (run["requests"], late, refused, false, f"{run['false_refusals']:.1%}", f"{run['median_error']:.0%}")
        shown.add_row(part, *map(str, cells))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--deadline", type=float, default=1.0, help="seconds")
    parser.add_argument("--virtual", action="store_true")
    args = parser.parse_args()
    executor = load_model(load_config(overrides={"model.name": args.model})).make_executor()
    result = measured(executor, calibrated(executor), args)
    Console().print(table(result))
    result = {"command": recorded_command(), "machine": machine(), "is_virtual": args.virtual, **result}
    suffix = "-virtual" if args.virtual else ""
    path = RESULTS / f"deadlines-{args.model.replace('/', '-')}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
