"""What each weight format costs in quality, and what the kernels add to that.

    python benchmarks/format_quality.py [MODEL] [--isa amx,avx512,avx2]

The model's weights, in float32, are taken for the original and rounded to each format. Two divergences for each, on the
recorded text: the format's own, of its values in float32 from the original; and the kernels', of what they compute from
the format (with bfloat16 keys and values) from its values in float32. Formats that the model is stored in already have
no cost of their own left. Prints a table and writes benchmarks/results/format-quality-MODEL.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from rich.console import Console
from rich.progress import track
from rich.table import Table

from comparison.command_line import recorded_command
from headway import _native
from headway.bench.report import machine
from headway.config import Config, ModelConfig, RuntimeConfig
from headway.model import tensor
from headway.model.architecture import ModelWeights
from headway.model.checkpoint import open_checkpoint
from headway.model.quant import read_matrix
from headway.model.resolve import resolve_model
from headway.model.tensor import StoredTensor
from headway.ops.weights import Matrix
from quality import GOLDEN, RESULTS, Expected, converted, distributions, measures, to_bf16, to_f32

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
FLOAT = RuntimeConfig("native")


def rounded(matrix: Matrix, name: str) -> Matrix:
    if name == "BF16":
        return to_bf16(matrix)
    weights = matrix.to_float32()
    blocks = quantize(weights, GGMLQuantizationType[name])
    return read_matrix(StoredTensor("", weights.shape, tensor.FORMATS[name], blocks.reshape(-1), "memory"))


class Model:
    def __init__(self, name: str) -> None:
        self.checkpoint = open_checkpoint(resolve_model(name, ModelConfig()).path)
        self.token_ids: list[int] = np.load(GOLDEN / f"{name}.npz")["token_ids"].tolist()[:512]
        self.original = converted(self.checkpoint.weights(), to_f32)

    def of_format(self, name: str) -> ModelWeights:
        return converted(self.original, lambda matrix: rounded(matrix, name))

    def exact(self, weights: ModelWeights) -> Expected:
        values = converted(weights, to_f32)
        logprobs, _ = distributions(self.checkpoint.architecture, values, self.token_ids, FLOAT, "f32")
        return Expected.whole(logprobs)

    def divergence(self, expected: Expected, weights: ModelWeights, isa: str | None) -> dict[str, float]:
        """``isa`` None: of the format's values, in float32."""
        if isa is None:
            return measures(expected, self.exact(weights).logprobs, self.token_ids)
        runtime = RuntimeConfig("native", isa=isa)
        logprobs, _ = distributions(self.checkpoint.architecture, weights, self.token_ids, runtime, "bf16")
        return measures(expected, logprobs, self.token_ids)


def measure(model: Model, isas: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    original = model.exact(model.original)
    found = {}
    for name in track([*FORMATS, "BF16"], "formats", transient=True):
        weights = model.of_format(name)
        exact = model.exact(weights)
        found[name] = {"format": model.divergence(original, weights, None)}
        found[name] |= {isa: model.divergence(exact, weights, isa) for isa in isas}
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> Table:
    columns = list(next(iter(found.values())))
    made = Table("mean KL, top-1", *("the format itself" if name == "format" else name for name in columns))
    for name, row in found.items():
        made.add_row(name, *(f"{row[c]['KL mean']:.2e}  {row[c]['top-1 agreement']:.1%}" for c in columns))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=Config().model.name)
    parser.add_argument("--isa", default=",".join(dict.fromkeys([_native.kernel_name("auto"), "avx512", "avx2"])))
    args = parser.parse_args()
    found = measure(Model(args.model), args.isa.split(","))
    Console().print(table(found))
    result: dict[str, Any] = {"command": recorded_command(), "machine": machine(), "divergence": found}
    (RESULTS / f"format-quality-{Path(args.model).stem}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
