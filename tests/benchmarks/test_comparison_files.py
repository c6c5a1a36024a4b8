"""Model files made for a comparison, read back with Headway's own reader."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comparison.gguf_files import LlamaShape, requantise, write_random_llama
from comparison.models import made
from comparison.safetensors_folder import write_safetensors_folder
from headway.engine.tokenizer import load_tokenizer
from headway.errors import UnsupportedModel
from headway.model.checkpoint import open_checkpoint
from headway.model.tensor_names import layer_shapes
from headway.ops.weights import AnyMatrix, PackedMatrix
from tiny_checkpoints import tiny_model, write_gguf

SHAPE = LlamaShape(num_layers=2, hidden=64, mlp=96, num_heads=4, num_kv_heads=2, head_dim=16, max_context=128)


def values(matrix: AnyMatrix) -> np.ndarray:
    assert not isinstance(matrix, PackedMatrix)
    return matrix.to_float32()


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    path = tmp_path / "llama.gguf"
    write_gguf(tiny_model("llama"), path)
    return path


@pytest.mark.parametrize("format", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_random_llama_opens(format: str, llama: Path, tmp_path: Path) -> None:
    write_random_llama(llama, tmp_path / "random.gguf", format, SHAPE)
    checkpoint = open_checkpoint(tmp_path / "random.gguf")
    arch = checkpoint.architecture
    assert (arch.family, len(arch.layers), arch.hidden_size, arch.num_kv_heads) == ("llama", 2, 64, 2)
    assert arch.tied_embeddings and checkpoint.quantisation == format
    down = values(checkpoint.weights().layers[1].down)
    assert down.shape == (64, 96)
    assert np.std(down) == pytest.approx(0.7 / 96**0.5, rel=0.1)
    same = load_tokenizer(open_checkpoint(llama).tokenizer_files()).encode("hello there")
    assert load_tokenizer(checkpoint.tokenizer_files()).encode("hello there") == same


def test_only_the_named_format_is_quantised_again(llama: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_random_llama(llama, first, "Q4_0", SHAPE)
    requantise(first, second, "Q4_0", "Q8_0")
    before, after = open_checkpoint(first), open_checkpoint(second)
    assert after.quantisation == "Q8_0" and after.architecture == before.architecture
    assert after.tensors["output_norm.weight"].format.name == "F32"
    old, new = (values(c.weights().layers[0].q) for c in (before, after))
    assert np.abs(old - new).max() <= np.abs(old).max() / 127


def test_a_safetensors_folder_has_the_same_weights_rounded(llama: Path, tmp_path: Path) -> None:
    write_random_llama(llama, tmp_path / "random.gguf", "Q4_1", SHAPE)
    write_safetensors_folder(tmp_path / "random.gguf", tmp_path / "folder")
    before, after = open_checkpoint(tmp_path / "random.gguf"), open_checkpoint(tmp_path / "folder")
    assert replace(after.architecture, attention_scale=after.architecture.scale) == before.architecture
    assert after.quantisation == "bf16"
    for role in layer_shapes(before.architecture):
        old, new = (getattr(c.weights().layers[1], role) for c in (before, after))
        if role.endswith("norm"):
            assert np.array_equal(old, new)
        else:
            np.testing.assert_allclose(new.to_float32(), old.to_float32(), rtol=2**-8)


def test_its_tokenizer_gives_the_same_ids(llama: Path, tmp_path: Path) -> None:
    write_safetensors_folder(llama, tmp_path / "folder")
    ours, theirs = (load_tokenizer(open_checkpoint(p).tokenizer_files()) for p in (llama, tmp_path / "folder"))
    text = "hello there, it is 12:30"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text, add_special_tokens=False)


def test_another_family_is_refused(tmp_path: Path) -> None:
    write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel, match="only a Llama model"):
        write_safetensors_folder(tmp_path / "m.gguf", tmp_path / "folder")


def test_a_file_is_there_only_once_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "made" / "file"

    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError):
        made(target, fail)
    assert not target.exists()

    def write(part: Path) -> None:
        part.write_text("whole")

    made(target, write)
    assert target.read_text() == "whole"
    assert made(target, fail) == target
