"""A model on disk, whichever its form: one GGUF file, or a folder of safetensors with config.json and tokenizer.json.

    open_checkpoint(path) -> Checkpoint -> .architecture, .weights(), .tokenizer_files()

Opening reads headers and configuration only; ``weights()`` checks every tensor and then reads lazily.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headway.errors import ModelNotFound
from headway.model.architecture import Architecture, ModelWeights
from headway.model.config_reader import ConfigReader
from headway.model.gguf import GGUFFile, read_gguf
from headway.model.gguf_config import ROPE_DIVISORS, gguf_architecture
from headway.model.hf_config import hf_architecture
from headway.model.safetensors import read_safetensors_folder
from headway.model.strict_json import read_json
from headway.model.tensor import StoredTensor
from headway.model.tensor_names import GGUF_NAMES, hf_names
from headway.model.tokenizer_files import TokenizerFiles, folder_tokenizer, gguf_tokenizer
from headway.model.weight_reader import WeightReader, num_parameters

# Hugging Face tensors that are no parameters: old files hold the rope frequencies, which the configuration determines.
_DERIVED_BUFFERS = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
# general.file_type numbers of llama.cpp (llama_ftype), for the formats we read.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 14: "Q4_K_S", 15: "Q4_K_M",
    16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip
# Sampling defaults: (name in SamplingParams, key in GGUF metadata after "general.sampling.").
_SAMPLING_KEYS = (
    ("temperature", "temp"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``generation_defaults`` are the sampling parameters the model's makers recommend, by their names in
    SamplingParams; ``quantisation`` is the format most weights are in. ``gguf`` is None for a folder."""

    path: Path
    architecture: Architecture
    tensors: dict[str, StoredTensor]
    generation_defaults: dict[str, float | int]
    quantisation: str
    gguf: GGUFFile | None = None

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.architecture)

    @property
    def stored_bytes(self) -> int:
        """What the tensors take on disk."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    def weights(self) -> ModelWeights:
        """Raises CheckpointError naming the tensor when one is missing, left over, misshapen or not finite (tensors of
        a layer are read, and so found not finite, when the layer is)."""
        where = str(self.path)
        if self.gguf is not None:
            interleaved = self.architecture.family == "llama"
            reader = WeightReader(where, self.architecture, self.tensors, GGUF_NAMES, interleaved_rope=interleaved)
            return reader.read(unneeded=frozenset({ROPE_DIVISORS}))  # in the architecture already
        offset = 1.0 if self.architecture.family == "gemma3" else 0.0
        reader = WeightReader(where, self.architecture, self.tensors, hf_names(self.architecture), norm_offset=offset)
        unneeded = {name for name in self.tensors if _DERIVED_BUFFERS.fullmatch(name)}
        if self.architecture.tied_embeddings:
            unneeded.add("lm_head.weight")  # a copy of the embedding: _is_tied has compared them
        return reader.read(frozenset(unneeded))

    def tokenizer_files(self) -> TokenizerFiles:
        return gguf_tokenizer(self.gguf.metadata) if self.gguf is not None else folder_tokenizer(self.path)


def open_checkpoint(path: Path) -> Checkpoint:
    """``path``: a GGUF file (whatever its name) or a folder. Raises a ModelError that names the file and what to do."""
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    gguf = read_gguf(path)
    sampling = ConfigReader(gguf.metadata, str(path), "general.sampling.")
    label = dominant_format(gguf.tensors)
    file_type = _FILE_TYPES.get(ConfigReader(gguf.metadata, str(path), "general.").integer("file_type", -1, low=-1), "")
    return Checkpoint(
        path=path,
        architecture=gguf_architecture(gguf),
        tensors=gguf.tensors,
        generation_defaults=_sampling_defaults(sampling, {key: name for name, key in _SAMPLING_KEYS}),
        quantisation=file_type if file_type.startswith(label) else label,
        gguf=gguf,
    )


def _open_folder(folder: Path) -> Checkpoint:
    config_file = folder / "config.json"
    if not config_file.exists():
        raise ModelNotFound(f"{folder}: there is no config.json; name a GGUF file or a folder with a complete model")
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    architecture = hf_architecture(read_json(config_file), generation, str(config_file))
    tensors = read_safetensors_folder(folder)
    sampling = ConfigReader(generation, str(generation_file))
    return Checkpoint(
        path=folder,
        architecture=replace(architecture, tied_embeddings=_is_tied(architecture, tensors)),
        tensors=tensors,
        generation_defaults=_sampling_defaults(sampling, {name: name for name, _ in _SAMPLING_KEYS}),
        quantisation=dominant_format(tensors),
    )


def _is_tied(arch: Architecture, tensors: Mapping[str, StoredTensor]) -> bool:
    """A configuration that ties the embeddings beside a file with an output matrix of its own: a mere copy is tied, one
    that differs is used, since it was stored for a reason (transformers decides so too)."""
    names = hf_names(arch).model
    embedding, output = tensors.get(names["embedding"]), tensors.get(names["output"])
    if not arch.tied_embeddings or embedding is None or output is None:
        return arch.tied_embeddings
    return embedding.format == output.format and np.array_equal(embedding.data, output.data)


def dominant_format(tensors: Mapping[str, StoredTensor]) -> str:
    """The format most of the layers' weights are in: "Q4_1", or "bf16" where they are dense."""
    weights: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and name.startswith(("blk.", "model.layers.")):
            weights[tensor.format.name.lower() if tensor.format.is_dense else tensor.format.name] += tensor.num_weights
    return weights.most_common(1)[0][0] if weights else "none"


def _sampling_defaults(reader: ConfigReader, names: dict[str, str]) -> dict[str, float | int]:
    """``names``: key in the file -> name in SamplingParams. What no request could ask for is an error here."""
    present = {name: key for key, name in names.items() if reader.get(key) is not None}
    return {name: _sampling_default(reader, name, key) for name, key in present.items()}


def _sampling_default(reader: ConfigReader, name: str, key: str) -> float | int:
    if name == "top_k":
        return reader.integer(key, low=-1)
    if name in ("top_p", "repetition_penalty"):
        return reader.positive(key, high=1.0 if name == "top_p" else 1e12)
    return reader.number(key, high=1.0 if name == "min_p" else 1e12)
