"""One tenant floods: what the others notice of it, and what fairness costs.

    python benchmarks/flood.py [MODEL] [--seconds 60] [--virtual]

Four tenants send four tenths of what the machine can do; a fifth then sends ten times its share, two times
all the machine can do. Three arms: the four alone, all five with fair shares, all five in order of arrival. (That
services of tenants which always have requests waiting stay within their bound, tests/simulation/test_fair_shares.py
checks after every step.) Prints a table and writes benchmarks/results/flood-MODEL.json; ``--virtual`` runs on a clock
that predicted steps move.
"""

import argparse
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from comparison.command_line import recorded_command
from comparison.core_load import Arrival, CoreLoad, PredictedExecutor, Served, VirtualClock, WallClock
from headway.bench.measures import percentile
from headway.bench.report import machine
from headway.bench.workload import Lengths
from headway.config import EngineConfig, load_config
from headway.core.executor import Executor
from headway.core.request import Objective
from headway.core.step_time import StepTimes
from headway.engine.calibration import calibrated
from headway.worker.load import load_model

RESULTS = Path(__file__).resolve().parent / "results"
PROMPT, OUTPUT = Lengths(200, 0.6), Lengths(60, 0.6)
OBJECTIVE = Objective(ttft_s=1.0, tpot_s=0.05)
NORMAL = ("ada", "ben", "cleo", "dan")
FLOOD = "flood"


def load_of(tenant: str, rate: float, seconds: float) -> list[Arrival]:
    rng, arrivals, at_s = random.Random(tenant), [], 0.0
    while (at_s := at_s + rng.expovariate(rate)) < seconds:
        arrivals.append(Arrival(at_s, PROMPT.draw(rng), OUTPUT.draw(rng), OBJECTIVE, tenant))
    return arrivals


@dataclass
class Engine:
    executor: Executor
    config: EngineConfig
    step_times: StepTimes
    is_virtual: bool

    def run(self, policy: str, arrivals: list[Arrival]) -> list[Served]:
        executor = PredictedExecutor(self.executor.info, self.step_times) if self.is_virtual else self.executor
        config = replace(self.config, scheduler=replace(self.config.scheduler, policy=policy))
        clock = VirtualClock if self.is_virtual else WallClock
        return CoreLoad(executor, config, self.step_times, clock).run(arrivals)

    def capacity(self) -> float:
        """Requests a second when there is always one more."""
        burst = [replace(arrival, at_s=0.0) for arrival in load_of(FLOOD, 200.0, 1.0)]
        served = self.run("fcfs", burst)
        return len(served) / max(one.request.last_token_s or 0.0 for one in served)


def summary(served: list[Served]) -> dict[str, Any]:
    """Of the four, and how many tokens a second all were given to the end of the last."""
    ttft = [one.ttft_s for one in served if one.arrival.tenant in NORMAL and one.ttft_s is not None]
    last = max(one.request.last_token_s or 0.0 for one in served)
    tokens = sum(one.arrival.num_prompt_tokens + one.arrival.num_output_tokens for one in served)
    return {
        "others_ttft_p50_s": percentile(ttft, 0.5),
        "others_ttft_p99_s": percentile(ttft, 0.99),
        "tokens_per_s": tokens / last,
        "seconds": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--virtual", action="store_true")
    args = parser.parse_args()
    config = load_config(overrides={"model.name": args.model})
    executor = load_model(config).make_executor()
    engine = Engine(executor, config.for_engine(), calibrated(executor), args.virtual)
    result = measured(engine, args.seconds)
    Console().print(table(result))
    result = {"command": recorded_command(), "machine": machine(), "is_virtual": args.virtual, **result}
    suffix = "-virtual" if args.virtual else ""
    path = RESULTS / f"flood-{args.model.replace('/', '-')}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


def measured(engine: Engine, seconds: float) -> dict[str, Any]:
    engine.config = replace(engine.config, max_waiting_requests=0)
    capacity = engine.capacity()
    normal = [arrival for tenant in NORMAL for arrival in load_of(tenant, 0.4 * capacity / len(NORMAL), seconds)]
    flood = load_of(FLOOD, 10 * capacity / (len(NORMAL) + 1), seconds)
    both = sorted(normal + flood, key=lambda arrival: arrival.at_s)
    normal.sort(key=lambda arrival: arrival.at_s)
    arms = {
        "the four alone": summary(engine.run("fair", normal)),
        "fair shares": summary(engine.run("fair", both)),
        "order of arrival": summary(engine.run("fcfs", both)),
    }
    return {"capacity_per_s": capacity, "arms": arms}


def table(result: dict[str, Any]) -> Table:
    shown = Table("", "others' TTFT p50", "p99", "p99 / alone", "tokens a second", title="One tenant floods")
    alone = result["arms"]["the four alone"]["others_ttft_p99_s"]
    for name, arm in result["arms"].items():
        p50, p99 = arm["others_ttft_p50_s"], arm["others_ttft_p99_s"]
        shown.add_row(name, f"{p50:.3f} s", f"{p99:.3f} s", f"{p99 / alone:.2f}", f"{arm['tokens_per_s']:.0f}")
    return shown


if __name__ == "__main__":
    main()
