"""How far a backend's distributions are from the expected ones, on real text.

    python benchmarks/quality.py                              native against the values recorded from transformers
    python benchmarks/quality.py --against reference          ... against the reference backend, whole distributions
    python benchmarks/quality.py MODEL --against reference --text FILE
    python benchmarks/quality.py --weights f32                the same values without quantised weights

Prints a table and writes benchmarks/results/quality-*.json. Divergences from recorded values are lower bounds: of each
position the 256 most likely tokens are recorded, and the others count as one outcome (``scoring.keep_some``).
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config import ModelConfig, RuntimeConfig
from headway.model.architecture import Architecture, LayerWeights, ModelWeights
from headway.model.checkpoint import Checkpoint, open_checkpoint
from headway.model.resolve import resolve_model
from headway.model.scoring import (
    Float64,
    keep_some,
    kl_divergence,
    log_probabilities,
    log_rest,
    perplexity,
    scoring_program,
    sequence_logits,
)
from headway.ops.reference import round_to_bf16
from headway.ops.weights import DenseMatrix, Matrix
from headway.worker.load import make_backend

ROOT = Path(__file__).resolve().parents[1]
GOLDEN, RESULTS = ROOT / "tests" / "golden", ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Expected:
    """``logprobs`` [n, outcomes]: of every token, or of ``kept_ids`` [n, outcomes - 1], then of all others together."""

    logprobs: Float64
    best_ids: NDArray[np.integer]
    kept_ids: NDArray[np.integer] | None = None

    @classmethod
    def recorded(cls, golden: dict[str, NDArray[Any]], num_tokens: int) -> "Expected":
        ids = golden["top_ids"][:num_tokens]
        kept = golden["top_logits"][:num_tokens].astype(np.float64) - golden["logsumexp"][:num_tokens, None]
        return cls(np.concatenate([kept, log_rest(kept)], axis=1), ids[:, 0], ids)

    @classmethod
    def whole(cls, logprobs: Float64) -> "Expected":
        return cls(logprobs, logprobs.argmax(axis=1))

    def divergence(self, actual: Float64) -> Float64:
        return kl_divergence(self.logprobs, actual if self.kept_ids is None else keep_some(actual, self.kept_ids))


def main() -> None:
    options = parse_options()
    resolved = resolve_model(options.model, ModelConfig(accept_licence=options.accept_licence))
    checkpoint = open_checkpoint(resolved.path)
    golden = dict(np.load(GOLDEN / f"{options.recorded}.npz")) if options.text is None else {}
    token_ids = (text_ids(checkpoint, options.text) if options.text else golden["token_ids"].tolist())[: options.tokens]
    weights = WEIGHTS[options.weights](checkpoint.weights())
    runtime = RuntimeConfig(options.backend, isa=options.isa)
    actual, kernels = distributions(checkpoint.architecture, weights, token_ids, runtime, options.kv)
    if options.against == "golden":
        expected = Expected.recorded(golden, len(token_ids))
    else:
        reference = RuntimeConfig("reference")
        expected = Expected.whole(distributions(checkpoint.architecture, weights, token_ids, reference, "f32")[0])
    facts = {
        "model": Path(resolved.name).name,
        "digest": resolved.digest,
        "quantisation": checkpoint.quantisation,
        "weights": options.weights,
        "backend": options.backend,
        "kernels": kernels,
        "kv dtype": options.kv,
        "against": "transformers, recorded" if options.against == "golden" else "reference backend",
        "tokens": len(token_ids),
    }
    report(facts | measures(expected, actual, token_ids))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=ModelConfig().name)
    parser.add_argument("--backend", default="native", choices=["native", "reference"])
    parser.add_argument("--isa", default="auto")
    parser.add_argument(
        "--weights", default="stored", choices=WEIGHTS, help="as stored, or widened to f32, or those rounded to bf16"
    )
    parser.add_argument("--kv", default="bf16", choices=["bf16", "f32"], help="the backend's KV dtype")
    parser.add_argument("--against", default="golden", choices=["golden", "reference"])
    parser.add_argument("--recorded", metavar="NAME", help="whose values of tests/golden (default: the model's name)")
    parser.add_argument("--text", type=Path, help="a text file (default: the recorded token ids)")
    parser.add_argument("--tokens", type=int, default=512, help="at most this many")
    parser.add_argument("--accept-licence", action="store_true")
    options = parser.parse_args()
    options.recorded = options.recorded or options.model
    recorded = sorted(path.stem for path in GOLDEN.glob("*-*.npz") if "top_ids" in np.load(path))
    if options.text and options.against == "golden":
        parser.error("a text of your own has no recorded values: add --against reference")
    if options.text is None and options.recorded not in recorded:
        parser.error(f"{options.recorded} has no recorded values, only {', '.join(recorded)}: use --recorded or --text")
    return options


def text_ids(checkpoint: Checkpoint, path: Path) -> list[int]:
    from headway.engine.tokenizer import load_tokenizer

    return load_tokenizer(checkpoint.tokenizer_files()).encode(path.read_text())


def to_f32(matrix: Matrix) -> Matrix:
    return DenseMatrix(matrix.to_float32())


def to_bf16(matrix: Matrix) -> Matrix:
    rounded = round_to_bf16(matrix.to_float32())
    return DenseMatrix((rounded.view(np.uint32) >> 16).astype(np.uint16), is_bf16=True)


def converted(weights: ModelWeights, convert: Callable[[Matrix], Matrix]) -> ModelWeights:
    """Every matrix in another format, as a checkpoint of that format would hold it."""

    def layer(stored: LayerWeights) -> LayerWeights:
        return replace(stored, **{name: convert(getattr(stored, name)) for name in MATRICES})

    output = None if weights.output is None else convert(weights.output)
    layers = [layer(weights.layers[i]) for i in range(len(weights.layers))]
    return replace(weights, embedding=convert(weights.embedding), layers=layers, output=output)


MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
WEIGHTS: dict[str, Callable[[ModelWeights], ModelWeights]] = {
    "stored": lambda weights: weights,
    "f32": lambda weights: converted(weights, to_f32),
    "bf16": lambda weights: converted(weights, to_bf16),
}


def distributions(
    architecture: Architecture, weights: ModelWeights, token_ids: list[int], runtime: RuntimeConfig, kv_dtype: str
) -> tuple[Float64, str]:
    """(log-probabilities [n, vocabulary] after each token, the kernels that computed them)."""
    backend = make_backend(runtime)
    program = scoring_program(architecture, weights, backend, len(token_ids), kv_dtype)
    return log_probabilities(sequence_logits(program, token_ids)), backend.isa


def measures(expected: Expected, actual: Float64, token_ids: list[int]) -> dict[str, float]:
    kl = expected.divergence(actual)
    return {
        "top-1 agreement": float((actual.argmax(axis=1) == expected.best_ids).mean()),
        "KL mean": float(kl.mean()),
        "KL median": float(np.median(kl)),
        "KL largest": float(kl.max()),
        "perplexity": perplexity(actual, token_ids),
        **({} if expected.kept_ids is not None else {"perplexity expected": perplexity(expected.logprobs, token_ids)}),
    }


def report(result: dict[str, str | int | float]) -> None:
    """Prints the table and writes it as JSON, named after what was compared."""
    for name, value in result.items():
        print(f"{name:<20} {value:.6g}" if isinstance(value, float) else f"{name:<20} {value}")
    words = (result[key] for key in ("model", "weights", "backend", "kernels", "kv dtype", "against"))
    path = RESULTS / f"quality-{re.sub(r'[^A-Za-z0-9.]+', '-', '-'.join(map(str, words))).strip('-')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
