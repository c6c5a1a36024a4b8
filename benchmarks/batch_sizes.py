"""Decode speed of every batch size from 1 to 64: is there one at which a request more costs everyone?

    python benchmarks/batch_sizes.py [MODEL] [--largest 64] [--rounds 3]

A batch of b + 1 should give at least 90 % of the tokens a second of a batch of b. Sizes are run in turns, ascending, in
each round. Prints the drops beyond that and writes benchmarks/results/batch-sizes-MODEL.json.
"""

import argparse
import json
import statistics
from pathlib import Path

from rich.progress import track

from comparison.command_line import recorded_command
from headway.bench.offline import OfflineEngine, Work
from headway.bench.report import machine
from headway.config import load_config
from headway.worker.load import load_model

RESULTS = Path(__file__).resolve().parent / "results"
MOST_DROP = 0.10


def measure(engine: OfflineEngine, largest: int, rounds: int) -> dict[int, list[float]]:
    speeds: dict[int, list[float]] = {batch: [] for batch in range(1, largest + 1)}
    engine.run(Work(largest, 32, 8))
    for i in range(rounds):
        for batch in track(speeds, f"round {i + 1} of {rounds}", transient=True):
            speeds[batch].append(engine.run(Work(batch, 32, 12)).decode_tokens_per_s or 0.0)
    return speeds


def drops(median: dict[int, float]) -> dict[int, float]:
    """By how much the speed falls from the batch before, for every size at which it falls."""
    return {b: 1 - median[b] / median[b - 1] for b in median if b > 1 and median[b] < median[b - 1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    config = load_config(overrides={"model.name": args.model})
    loaded = load_model(config)
    speeds = measure(OfflineEngine(loaded.make_executor(), config.scheduler), args.largest, args.rounds)
    median = {batch: statistics.median(values) for batch, values in speeds.items()}
    for batch in (b for b in (1, 2, 4, 8, 16, 32, 64) if b in median):
        print(f"b={batch}: {median[batch]:.0f} tokens/s")
    falls = drops(median)
    print("falls of more than 10 %:", {b: f"{d:.0%}" for b, d in falls.items() if d > MOST_DROP} or "none")
    result = {
        "command": recorded_command(),
        "machine": machine(),
        "kernels": loaded.backend.isa,
        "threads": loaded.backend.threads,
        "tokens_per_s": speeds,
        "drops": falls,
    }
    (RESULTS / f"batch-sizes-{Path(args.model).stem}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
