"""A long prompt arrives beside streams that decode: what it does to their gaps, and they to it.

    python benchmarks/long_prompt.py [MODEL] [--rounds 3] [--streams 16] [--prompt 4000]

Three arms in turns: prompts take whole steps, as without an objective; prompts are cut so that each stream has its
next token within twice the step without the prompt (the objective is measured, then set); and the prompt alone. Prints
a line for each arm and writes benchmarks/results/long-prompt-MODEL.json.
"""

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from comparison.command_line import recorded_command
from headway.bench.report import machine
from headway.config import Config, EngineConfig, load_config
from headway.core.batch import ScheduledBatch
from headway.core.engine_core import EngineCore
from headway.core.request import Objective, Request, SamplingParams
from headway.core.step_time import StepTimes
from headway.engine.calibration import calibrated
from headway.worker.load import load_model

RESULTS = Path(__file__).resolve().parent / "results"
STREAM_PROMPT, BEFORE, STREAM_OUTPUT, PROMPT_OUTPUT = 32, 48, 400, 8  # tokens
VOCABULARY = 32_000


@dataclass
class Run:
    """When tokens came, in seconds; ``arrived`` is the prompt's."""

    arrived: float = math.inf
    ended: float = math.inf
    num_steps_of_prompt: int = 0
    tokens: dict[str, list[float]] = field(default_factory=dict)

    def gaps(self, name: str) -> list[tuple[float, float]]:
        """(end of the gap, its length) of one stream."""
        return [(after, after - before) for before, after in pairwise(self.tokens[name])]

    def measures(self, prompt: str) -> dict[str, float]:
        first = self.tokens[prompt][0]
        gaps = [gap for name in self.tokens if name != prompt for gap in self.gaps(name)]
        before = [length for end, length in gaps if end <= self.arrived]
        beside = [length for end, length in gaps if self.arrived < end <= first + 1e-6]
        return {
            "step_s": statistics.median(before) if before else 0.0,
            "worst_gap_s": max(beside, default=0.0),
            "ttft_s": first - self.arrived,
            "steps_of_prompt": self.num_steps_of_prompt,
            "seconds": self.ended - self.arrived,
        }


class Engine:
    def __init__(self, model: str) -> None:
        self._config = load_config(overrides={"model.name": model})
        self._executor = load_model(self._config).make_executor()
        self.step_times = calibrated(self._executor)
        self._names = (f"request-{number}" for number in count())
        self._rng = random.Random(0)

    def run(self, num_streams: int, prompt_tokens: int, tpot_s: float, step_times: StepTimes | None) -> dict[str, Any]:
        core = EngineCore(self._executor, EngineConfig(self._config.scheduler, prefix_cache=False), step_times)
        run, objective = Run(), Objective(tpot_s)
        for _ in range(num_streams):
            self._add(core, run, STREAM_PROMPT, STREAM_OUTPUT, objective)
        prompt = None
        while prompt is None or core.num_running or core.num_waiting:
            if prompt is None and min(map(len, run.tokens.values()), default=BEFORE) >= BEFORE:
                run.arrived = time.perf_counter()
                prompt = self._add(core, run, prompt_tokens, PROMPT_OUTPUT, objective)
            self._step(core, run, prompt)
        run.ended = time.perf_counter()
        self._executor.submit(ScheduledBatch(-1, tuple(run.tokens), (), ())).result()  # the next core begins anew
        assert prompt is not None
        return run.measures(prompt)

    def _add(self, core: EngineCore, run: Run, prompt: int, output: int, objective: Objective) -> str:
        tokens = tuple(self._rng.choices(range(VOCABULARY), k=prompt))
        sampling = SamplingParams(output, temperature=0, seed=0, ignore_eos=True)
        request = Request(next(self._names), tokens, sampling, objective=objective)
        refusal = core.add_request(request, time.perf_counter()).refusal
        if refusal is not None:
            raise SystemExit(refusal.message)
        run.tokens[request.request_id] = []
        return request.request_id

    def _step(self, core: EngineCore, run: Run, prompt: str | None) -> None:
        step = core.begin_step(time.perf_counter())
        assert step is not None
        run.num_steps_of_prompt += prompt is not None and not run.tokens[prompt]
        outputs = core.finish_step(step, step.handle.result(), time.perf_counter())
        now = time.perf_counter()
        for output in outputs:
            run.tokens[output.request_id] += [now] * len(output.new_token_ids)


def rounds(engine: Engine, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The first is not counted: it finds the step that the objective is made from."""
    tpot_s = 2 * engine.run(args.streams, args.prompt, math.inf, None)["step_s"]
    for _ in range(args.rounds):
        yield {
            "tpot_s": tpot_s,
            "alone": engine.run(0, args.prompt, math.inf, None),
            "whole steps": engine.run(args.streams, args.prompt, math.inf, None),
            "objective": engine.run(args.streams, args.prompt, tpot_s, engine.step_times),
        }


def summary(arm: str, measured: list[dict[str, Any]]) -> str:
    def median(of: Any) -> str:
        values = [of(r) for r in measured]
        return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

    worst = median(lambda r: r[arm]["worst_gap_s"] / r[arm]["step_s"])
    ttft = median(lambda r: r[arm]["ttft_s"])
    bound = median(
        lambda r: r[arm]["ttft_s"] / (1.5 * r["alone"]["ttft_s"] + r[arm]["steps_of_prompt"] * r[arm]["step_s"])
    )
    speed = median(lambda r: r["whole steps"]["seconds"] / r[arm]["seconds"])
    return (
        f"{arm}: worst gap {worst} steps; first token of the prompt after {ttft} s, {bound} of its own compute and a "
        f"half and the decodes meanwhile; {speed} of the throughput with whole steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=Config().model.name)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=4000)
    args = parser.parse_args()
    engine = Engine(args.model)
    measured = list(rounds(engine, args))
    for arm in ("whole steps", "objective"):
        print(summary(arm, measured))
    error, bias = engine.step_times.mean_error, engine.step_times.mean_bias
    print(f"step times: mean error {error:.1%}, bias {bias:+.1%}, over the last steps")
    result = {
        "command": recorded_command(),
        "machine": machine(),
        "step_time_error": {"mean": error, "bias": bias},
        "rounds": measured,
    }
    (RESULTS / f"long-prompt-{Path(args.model).stem}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
