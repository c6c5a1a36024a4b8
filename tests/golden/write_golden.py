"""Writes the expected values of this folder with transformers, in float32. Needed only to add a case.

    pip install '.[oracle]'
    python tests/golden/write_golden.py                                    every tiny model
    python tests/golden/write_golden.py --gguf smollm2-135m=MODEL.gguf     a catalogue model on text.txt

Tiny models: ``logits`` [tokens, vocabulary] and the ``digest`` of the weights. Catalogue models: see ``record_text``.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from golden_cases import CASES, GOLDEN, GoldenCase, digest
from tiny_checkpoints import write_folder

NUM_TOP = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", metavar="NAME=PATH", help="record a catalogue model instead of the tiny ones")
    name, _, path = (parser.parse_args().gguf or "").partition("=")
    if name:
        record_text(name, Path(path))
    else:
        for case in CASES:
            record_tiny(case)


@torch.inference_mode()
def logits_of(model: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    return model.eval()(torch.tensor([token_ids])).logits[0].numpy()


def record_tiny(case: GoldenCase) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(case.model(), Path(folder), case.dtype)
        oracle = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        logits = logits_of(oracle, case.token_ids())
    np.savez(case.path, logits=logits, digest=np.array(digest(case.model())))
    print(
        f"{case.path.name}: {case.path.stat().st_size} bytes, logits {logits.std():.2f} +- around {logits.mean():.2f}"
    )


def record_text(name: str, path: Path) -> None:
    """Of each position of text.txt: the ``NUM_TOP`` largest logits, their ids, and the logsumexp of all logits."""
    load = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32, attn_implementation="eager")
    token_ids = tokenizer((GOLDEN / "text.txt").read_text())["input_ids"]
    logits = logits_of(oracle, token_ids)
    top_ids = np.argsort(-logits, axis=1, kind="stable")[:, :NUM_TOP]
    target = GOLDEN / f"{name}.npz"
    np.savez_compressed(
        target,
        token_ids=np.array(token_ids, np.int32),
        top_ids=top_ids.astype(np.min_scalar_type(logits.shape[1])),
        top_logits=np.take_along_axis(logits, top_ids, axis=1),
        logsumexp=torch.tensor(logits, dtype=torch.float64).logsumexp(dim=1).numpy(),
    )
    print(f"{target.name}: {target.stat().st_size} bytes, {len(token_ids)} tokens")


if __name__ == "__main__":
    main()
