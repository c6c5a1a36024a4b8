"""A Llama GGUF file as a folder of bfloat16 safetensors, for engines that read nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import decoders

from headway.engine.gguf_tokenizer import read_gguf_tokenizer
from headway.errors import UnsupportedModel
from headway.model.architecture import Architecture, ModelWeights
from headway.model.checkpoint import Checkpoint, open_checkpoint
from headway.model.tensor_names import hf_names, layer_shapes
from headway.ops.weights import AnyMatrix, PackedMatrix


def write_safetensors_folder(gguf_file: Path, folder: Path) -> None:
    """Weights rounded to bfloat16, config.json and the tokenizer. UnsupportedModel for another family than Llama."""
    checkpoint = open_checkpoint(gguf_file)
    arch = checkpoint.architecture
    if arch.family != "llama" or any(layer.rope_scaling.kind != "none" for layer in arch.layers):
        raise UnsupportedModel(
            f"{gguf_file}: only a Llama model without rope scaling can be written as safetensors here"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "model.safetensors", dict(_bf16_tensors(arch, checkpoint.weights())))
    (folder / "config.json").write_text(json.dumps(_llama_config(arch), indent=1) + "\n")
    _write_tokenizer(checkpoint, folder)


def _bf16_tensors(arch: Architecture, weights: ModelWeights) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    names = hf_names(arch)
    yield names.model["embedding"], _bf16(weights.embedding)
    yield names.model["final_norm"], _bf16(weights.final_norm)
    if weights.output is not None:
        yield names.model["output"], _bf16(weights.output)
    for index, layer in enumerate(weights.layers):
        for role in layer_shapes(arch):
            yield names.of_layer(index, role), _bf16(getattr(layer, role))


def _bf16(tensor: AnyMatrix | NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns, rounded to the nearest, ties to even."""
    assert not isinstance(tensor, PackedMatrix), "these come from a file"
    values = tensor if isinstance(tensor, np.ndarray) else tensor.to_float32()
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _write_safetensors(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """The length of a JSON header (8 bytes, little endian), the header, then the tensors one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        begin, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def _llama_config(arch: Architecture) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_hidden_layers": len(arch.layers),
        "num_attention_heads": arch.num_heads,
        "num_key_value_heads": arch.num_kv_heads,
        "head_dim": arch.head_dim,
        "hidden_act": arch.activation,
        "max_position_embeddings": arch.max_context,
        "rms_norm_eps": arch.norm_eps,
        "rope_theta": arch.layers[0].rope_theta,
        "tie_word_embeddings": arch.tied_embeddings,
        "bos_token_id": arch.bos_token_id,
        "eos_token_id": list(arch.eos_token_ids),
    }


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    spec = read_gguf_tokenizer(checkpoint.tokenizer_files().gguf_metadata)
    encoder = spec.encoder
    encoder.decoder = decoders.ByteLevel()
    tokenizer = json.loads(encoder.to_str())
    for token_id, token in spec.special_tokens.items():
        tokenizer["model"]["vocab"][token.content] = token_id
    tokenizer["added_tokens"] = [
        {"id": token_id, "content": token.content, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for token_id, token in spec.special_tokens.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
