"""The models compared, and each in the formats that engines are fastest with, made on first use."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comparison.environments import PEERS_HOME
from comparison.gguf_files import requantise, write_random_llama
from comparison.safetensors_folder import write_safetensors_folder
from headway.config import ModelConfig
from headway.model.checkpoint import open_checkpoint
from headway.model.resolve import resolve_model

FILES = PEERS_HOME / "models"
DEFAULT_MODEL, RANDOM_MODEL = "smollm2-135m", "random-llama-1b"


@dataclass(frozen=True)
class ComparedModel:
    """``path`` is the GGUF file that Headway runs, ``format`` what most of its weights are in."""

    name: str
    path: Path
    format: str
    digest: str
    num_parameters: int

    def in_format(self, format: str) -> Path:
        """The file itself, or made from it: a GGUF file in another format, or for bf16 a folder of safetensors."""
        if format == self.format:
            return self.path
        target = FILES / f"{self.name}-{self.digest[:12]}.{format}"
        if format == "bf16":
            return made(target, partial(write_safetensors_folder, self.path))
        target = target.with_name(target.name + ".gguf")
        return made(target, lambda part: requantise(self.path, part, self.format, format))


def compared_model(name: str) -> ComparedModel:
    """``random-llama-1b``, or whatever names a model of one GGUF file elsewhere in Headway."""
    resolved = resolve_model(str(random_llama()) if name == RANDOM_MODEL else name, ModelConfig())
    checkpoint = open_checkpoint(resolved.path)
    return ComparedModel(
        name=name if name == RANDOM_MODEL else Path(resolved.name).stem,
        path=resolved.path,
        format=checkpoint.quantisation,
        digest=resolved.digest,
        num_parameters=checkpoint.num_parameters,
    )


def random_llama() -> Path:
    tokenizer = resolve_model(DEFAULT_MODEL, ModelConfig()).path
    return made(FILES / f"{RANDOM_MODEL}.Q4_0.gguf", lambda part: write_random_llama(tokenizer, part, "Q4_0"))


def made(target: Path, make: Callable[[Path], None]) -> Path:
    """``target``, which is there only once it is whole."""
    if not target.exists():
        part = target.with_name(target.name + ".part")
        if part.is_dir():
            shutil.rmtree(part)
        part.parent.mkdir(parents=True, exist_ok=True)
        make(part)
        part.rename(target)
    return target
