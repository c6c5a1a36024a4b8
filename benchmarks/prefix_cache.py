"""What the prefix cache gains where prompts begin alike, and what it costs where none does.

    python benchmarks/prefix_cache.py [MODEL] [--rounds 3]

Two works, each with the cache and without, in turns: prompts that share long beginnings (as many users of few system
prompts and documents do), and prompts that share nothing. Every answer must be the same. The best possible hit rate is
that of a cache without bounds: every block of a beginning computed once. Engines are loaded in either order, as where
their memory comes from makes two equal ones differ by a percent or two. Prints a line for each work and writes
benchmarks/results/prefix-cache-MODEL.json.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison.command_line import recorded_command
from headway import LLM, SamplingParams
from headway.bench.report import machine
from headway.config import Config

RESULTS = Path(__file__).resolve().parent / "results"
NUM_BEGINNINGS, BEGINNING, END, OUTPUT = 6, 1536, 24, 8  # tokens, except the first
NUM_REQUESTS = 96
VOCABULARY = 32_000  # of the prompts: ids that every model has
BLOCK = Config().cache.block_size

Prompts = list[list[int]]


def shared_prompts(rng: random.Random) -> Prompts:
    def tokens(count: int) -> list[int]:
        return rng.choices(range(VOCABULARY), k=count)

    beginnings = [tokens(BEGINNING) for _ in range(NUM_BEGINNINGS)]
    return [rng.choice(beginnings) + tokens(END) for _ in range(NUM_REQUESTS)]


def separate_prompts(rng: random.Random) -> Prompts:
    return [rng.choices(range(VOCABULARY), k=256) for _ in range(NUM_REQUESTS // 2)]


WORKS = {"shared beginnings": shared_prompts, "nothing shared": separate_prompts}


def best_hit_rate(prompts: Prompts) -> float:
    """Of all prompt tokens, those in whole blocks that an earlier prompt had behind the same tokens."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in prompts:
        for end in range(BLOCK, len(prompt), BLOCK):
            block = tuple(prompt[:end])
            hits += BLOCK * (block in seen)
            seen.add(block)
    return hits / sum(map(len, prompts))


def run(llm: LLM, prompts: Prompts) -> dict[str, Any]:
    sampling = SamplingParams(max_tokens=OUTPUT, temperature=0, ignore_eos=True)
    began = time.perf_counter()
    results = llm.generate(prompts, sampling)
    seconds = time.perf_counter() - began
    num_prompt = sum(len(prompt) for prompt in prompts)
    return {
        "seconds": seconds,
        "tokens_per_s": (num_prompt + OUTPUT * len(prompts)) / seconds,
        "hit_rate": sum(result.usage.cached_tokens for result in results) / num_prompt,
        "answers": [result.token_ids for result in results],
    }


def warm_up(engines: dict[str, LLM]) -> None:
    """50,000 tokens write every block of the pool: the system finds memory when it is first used."""
    for engine in engines.values():
        for number in range(4):
            run(engine, separate_prompts(random.Random(f"warm up {number}")))


def rounds(engines: dict[str, LLM], name: str, num_rounds: int) -> Iterator[dict[str, Any]]:
    """With prompts of their own each, so that no round finds what an earlier one has left."""
    for number in range(num_rounds):
        prompts = WORKS[name](random.Random(f"{name} {number} {list(engines)}"))
        names = list(engines) if number % 2 else list(reversed(engines))
        found = {engine: run(engines[engine], prompts) for engine in names}
        answers = [measured.pop("answers") for measured in found.values()]
        if answers[0] != answers[1]:
            raise SystemExit(f"{name}, round {number}: answers differ with the cache and without")
        yield {"best_hit_rate": best_hit_rate(prompts), **found}


def summary(name: str, measured: list[dict[str, Any]]) -> str:
    speedups = [r["on"]["tokens_per_s"] / r["off"]["tokens_per_s"] for r in measured]
    hits, best = (
        statistics.mean(rate)
        for rate in zip(*((r["on"]["hit_rate"], r["best_hit_rate"]) for r in measured), strict=True)
    )
    of_best = f", {hits / best:.1%} of the best possible" if best else ""
    return (
        f"{name}: {statistics.geometric_mean(speedups):.3f} times the throughput "
        f"({min(speedups):.3f} to {max(speedups):.3f}), hit rate {hits:.1%}{of_best}; answers equal"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=Config().model.name)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    works: dict[str, list[dict[str, Any]]] = {name: [] for name in WORKS}
    for order in (["on", "off"], ["off", "on"]):
        engines = {name: LLM(args.model, prefix_cache=name == "on") for name in order}
        warm_up(engines)
        for name, measured in works.items():
            measured += rounds(engines, name, args.rounds)
        for engine in engines.values():
            engine.close()
    for name, measured in works.items():
        print(summary(name, measured))
    result = {"command": recorded_command(), "machine": machine(), "works": works}
    (RESULTS / f"prefix-cache-{Path(args.model).stem}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
