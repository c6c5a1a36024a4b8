"""Headway: through its scheduler and its sampler, greedily, with its defaults."""

from typing import Any

import protocol
from headway import __version__
from headway.bench.offline import OfflineEngine, Work
from headway.config import load_config
from headway.worker.load import load_model


def load(model: str, threads: int) -> tuple[protocol.Measure, protocol.Facts]:
    config = load_config(overrides={"model.name": model, "runtime.threads": threads})
    loaded = load_model(config)
    engine = OfflineEngine(loaded.make_executor(), config.scheduler)

    def measure(batch: int, prompt: int, output: int) -> dict[str, float]:
        return protocol.timings(engine.run(Work(batch, prompt, output)).token_s)

    def facts() -> dict[str, Any]:
        return {"version": __version__, "kernels": loaded.backend.isa, "settings": "defaults"}

    return measure, facts


if __name__ == "__main__":
    protocol.serve(load)
