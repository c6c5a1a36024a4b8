"""Writes a Llama of 1.07 billion random 4-bit weights, for measuring speed: its answers mean nothing.

python benchmarks/random_llama.py OUT.gguf [--format Q4_1] [--tokenizer MODEL]
"""

import argparse
from pathlib import Path

from comparison.gguf_files import BLOCK_FORMATS, write_random_llama
from headway.config import ModelConfig
from headway.model.resolve import resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=BLOCK_FORMATS, default="Q4_0")
    parser.add_argument("--tokenizer", default="smollm2-135m", help="a catalogue name or a GGUF file to borrow it from")
    args = parser.parse_args()
    write_random_llama(resolve_model(args.tokenizer, ModelConfig()).path, args.out, args.format)


if __name__ == "__main__":
    main()
