"""GGUF files made for a comparison: a model in another of the simple formats, and a random model of a chosen size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from rich.progress import track

BLOCK_FORMATS = ("Q4_0", "Q4_1", "Q8_0")
WEIGHT_SCALE = 0.7  # times 1 / sqrt(inputs): activations keep their size from layer to layer


def requantise(source: Path, target: Path, from_format: str, to_format: str) -> None:
    """Tensors of ``from_format`` become ``to_format``; others stay as they are. For speed only: rounded twice."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{to_format}"])
    for tensor in track(reader.tensors, f"{target.name}: "):
        kind, data = tensor.tensor_type, tensor.data
        if kind.name == from_format:
            data = quantize(dequantize(data, kind), GGMLQuantizationType[to_format])
            kind = GGMLQuantizationType[to_format]
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    finish(writer)


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, prefix: str = "") -> None:
    written_anew = ("GGUF.", "general.architecture", "general.file_type")
    for name, field in reader.fields.items():
        if not name.startswith(prefix) or name.startswith(written_anew):
            continue
        kind, *item_kinds = field.types
        writer.add_key_value(name, field.contents(), kind, item_kinds[-1] if item_kinds else None)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True)
class LlamaShape:
    """By default 1.07 billion parameters, with a vocabulary of 49,152 tied to the output."""

    num_layers: int = 16
    hidden: int = 2048
    mlp: int = 8192
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 64
    max_context: int = 8192

    def matrices(self, vocab_size: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name -> outputs, inputs."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield "token_embd", (vocab_size, self.hidden)
        for i in range(self.num_layers):
            yield f"blk.{i}.attn_q", (q, self.hidden)
            yield f"blk.{i}.attn_k", (kv, self.hidden)
            yield f"blk.{i}.attn_v", (kv, self.hidden)
            yield f"blk.{i}.attn_output", (self.hidden, q)
            yield f"blk.{i}.ffn_gate", (self.mlp, self.hidden)
            yield f"blk.{i}.ffn_up", (self.mlp, self.hidden)
            yield f"blk.{i}.ffn_down", (self.hidden, self.mlp)

    def norms(self) -> Iterator[str]:
        yield "output_norm"
        for i in range(self.num_layers):
            yield from (f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm")


def write_random_llama(tokenizer: Path, target: Path, format: str, shape: LlamaShape = LlamaShape()) -> None:
    """Normal weights, the same each time, every matrix in ``format``; the tokenizer is that of another GGUF file."""
    reader = GGUFReader(tokenizer)
    writer = GGUFWriter(target, "llama")
    copy_metadata(reader, writer, "tokenizer.")
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    _describe(writer, shape, vocab_size, format)
    kind = GGMLQuantizationType[format]
    rng = np.random.default_rng(0)
    for name in shape.norms():
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, np.float32))
    for name, size in track(list(shape.matrices(vocab_size)), f"{target.name}: "):
        writer.add_tensor(f"{name}.weight", quantize(_random_matrix(rng, size), kind), raw_dtype=kind)
    finish(writer)


def _random_matrix(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
    return rng.standard_normal(size, np.float32) * np.float32(WEIGHT_SCALE / size[1] ** 0.5)


def _describe(writer: GGUFWriter, shape: LlamaShape, vocab_size: int, format: str) -> None:
    writer.add_name("random-llama")
    writer.add_file_type(LlamaFileType[f"MOSTLY_{format}"])
    writer.add_vocab_size(vocab_size)
    writer.add_context_length(shape.max_context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500_000.0)
