import json
import re
from dataclasses import fields
from pathlib import Path

import gguf
import numpy as np
import pytest

from headway.errors import CheckpointError, ModelNotFound
from headway.model.architecture import Architecture, ModelWeights
from headway.model.checkpoint import open_checkpoint
from headway.ops.weights import DenseMatrix, GroupQuantized
from tiny_checkpoints import (
    CHAT_TEMPLATE,
    FAMILIES,
    K_FORMATS,
    WIDE,
    TinyModel,
    gguf_name,
    tiny_model,
    write_folder,
    write_gguf,
)

ROLES = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "input_layernorm": "input_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}


def values_of(weight: object) -> np.ndarray:
    if isinstance(weight, DenseMatrix | GroupQuantized):
        return weight.to_float32()
    assert isinstance(weight, np.ndarray) and weight.dtype == np.float32
    return weight


def assert_holds(weights: ModelWeights, model: TinyModel) -> None:
    """Every tensor of ``model`` is in ``weights`` with its exact values, and no role beyond those is filled."""
    offset = np.float32(1 if model.family == "gemma3" else 0)
    found = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.output,
    }
    num_roles = 0
    for i, layer in enumerate(weights.layers):
        stems = ROLES | {"post_attention_layernorm": "post_attention_norm" if model.family == "gemma3" else "mlp_norm"}
        for stem, role in stems.items():
            found[f"model.layers.{i}.{stem}.weight"] = getattr(layer, role)
            found[f"model.layers.{i}.{stem}.bias"] = getattr(layer, f"{role}_bias", None)
        num_roles += sum(getattr(layer, field.name) is not None for field in fields(layer))
    for name, expected in model.tensors.items():
        expected = expected + offset if "norm" in name else expected
        np.testing.assert_array_equal(values_of(found[name]), expected, err_msg=name)
    assert num_roles == sum("layers" in name for name in model.tensors)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("F16", 3), ("BF16", 2)])
def test_a_folder_gives_back_every_tensor(tmp_path: Path, family: str, dtype: str, shards: int) -> None:
    held = write_folder(tiny_model(family), tmp_path, dtype, shards)
    checkpoint = open_checkpoint(tmp_path)
    assert_holds(checkpoint.weights(), held)
    assert checkpoint.quantisation == dtype.lower()
    assert checkpoint.num_parameters == sum(values.size for values in held.tensors.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *K_FORMATS])
def test_a_gguf_gives_back_every_tensor(tmp_path: Path, family: str, format: str) -> None:
    """Also that q and k rows are put back in order for the llama architecture, and only there."""
    model = tiny_model(family, **(WIDE if format in K_FORMATS else {}))
    held = write_gguf(model, tmp_path / "model.gguf", format)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert_holds(checkpoint.weights(), held)
    assert checkpoint.quantisation == (format.lower() if format in ("F32", "F16", "BF16") else format)
    assert checkpoint.num_parameters == sum(values.size for values in held.tensors.values())


@pytest.mark.parametrize("write", [write_folder, write_gguf])
def test_all_biases_of_a_llama_are_loaded(tmp_path: Path, write) -> None:
    """In GGUF the biases of q and k are interleaved as their rows are."""
    held = write(tiny_model("llama", attention_bias=True, mlp_bias=True), tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    arch = checkpoint.architecture
    assert arch.qkv_bias and arch.output_bias and arch.mlp_bias
    assert_holds(checkpoint.weights(), held)


def test_the_offset_of_gemmas_norms_does_not_reach_its_biases(tmp_path: Path) -> None:
    held = write_folder(tiny_model("gemma3", attention_bias=True), tmp_path)
    layer = open_checkpoint(tmp_path).weights().layers[0]
    np.testing.assert_array_equal(layer.q_bias, held.tensors["model.layers.0.self_attn.q_proj.bias"])


@pytest.mark.parametrize("family", FAMILIES)
def test_folder_and_gguf_make_the_same_architecture(tmp_path: Path, family: str) -> None:
    model = tiny_model(family)
    write_folder(model, tmp_path / "folder")
    write_gguf(model, tmp_path / "model.gguf")
    ours, theirs = (comparable(open_checkpoint(tmp_path / name).architecture) for name in ("folder", "model.gguf"))
    assert ours == theirs


def comparable(arch: Architecture) -> dict[str, object]:
    """Fields, with numbers that GGUF rounds to float32 rounded on both sides, and the scale resolved."""
    values = {field.name: getattr(arch, field.name) for field in fields(arch)}
    return values | {"norm_eps": np.float32(arch.norm_eps), "attention_scale": arch.scale}


# -- the output matrix ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_folder, write_gguf])
def test_without_an_output_matrix_a_tied_model_uses_its_embedding(tmp_path: Path, write) -> None:
    write(tiny_model("llama", tie_word_embeddings=True), tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    assert checkpoint.architecture.tied_embeddings
    assert checkpoint.weights().output is None


def test_an_untied_folder_without_an_output_matrix_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    del model.tensors["lm_head.weight"]
    write_folder(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        open_checkpoint(tmp_path).weights()


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_folder_with_an_output_matrix_uses_it_where_it_differs(tmp_path: Path, same: bool) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    embedding = model.tensors["model.embed_tokens.weight"]
    model.tensors["lm_head.weight"] = embedding if same else embedding * 2
    write_folder(model, tmp_path)
    output = open_checkpoint(tmp_path).weights().output
    assert (output is None) == same
    if output is not None:
        np.testing.assert_array_equal(output.to_float32(), embedding * 2)


# -- every tensor used, every parameter set --------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_folder, write_gguf])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_missing_tensor_is_named(tmp_path: Path, write, family: str) -> None:
    complete = tiny_model(family, num_hidden_layers=1)
    for number, name in enumerate(complete.tensors):
        if name.startswith("lm_head") and write is write_gguf:
            continue  # means tied there
        model = TinyModel(family, complete.config, {n: v for n, v in complete.tensors.items() if n != name})
        write(model, tmp_path / f"model{number}")
        stored_name = gguf_name(name, family) if write is write_gguf else name
        # a GGUF without the first bias of a kind is one without such biases, and the others are left over
        problem = "bias'" if write is write_gguf and "bias" in name else f"'{re.escape(stored_name)}' is missing"
        with pytest.raises(CheckpointError, match=problem):
            open_checkpoint(tmp_path / f"model{number}").weights()


@pytest.mark.parametrize("extra", ["layers.0.self_attn.q_proj.bias", "layers.0.mlp.router.weight", "layers.2.x.weight"])
def test_a_tensor_nobody_asked_for_is_named(tmp_path: Path, extra: str) -> None:
    model = tiny_model("llama")
    model.tensors[f"model.{extra}"] = np.zeros(64, np.float32)
    write_folder(model, tmp_path)
    with pytest.raises(CheckpointError, match=f"'model.{extra}'"):
        open_checkpoint(tmp_path).weights()


def test_biases_that_only_later_layers_have_are_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    model.tensors["model.layers.1.self_attn.v_proj.bias"] = np.zeros(64, np.float32)
    write_gguf(model, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"'blk\.1\.attn_v\.bias'"):
        open_checkpoint(tmp_path / "model.gguf").weights()


def test_rope_buffers_of_old_files_are_allowed(tmp_path: Path) -> None:
    model = tiny_model("llama")
    held = dict(model.tensors)
    model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    write_folder(model, tmp_path)
    assert_holds(open_checkpoint(tmp_path).weights(), TinyModel("llama", model.config, held))


@pytest.mark.parametrize("write", [write_folder, write_gguf])
@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_a_shape_that_contradicts_the_configuration_is_named(tmp_path: Path, write, name: str) -> None:
    model = tiny_model("llama")
    model.tensors[name] = np.zeros((7, 32) if model.tensors[name].ndim == 2 else 9, np.float32)
    write(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"has the shape|embedding table"):
        open_checkpoint(tmp_path / "model").weights()


@pytest.mark.parametrize("write", [write_folder, write_gguf])
@pytest.mark.parametrize("name", ["model.layers.1.input_layernorm.weight", "model.layers.0.mlp.down_proj.weight"])
def test_nan_weights_are_found_when_their_layer_is_read(tmp_path: Path, write, name: str) -> None:
    model = tiny_model("llama")
    model.tensors[name].flat[3] = np.nan
    write(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match="infinite or NaN"):
        list(open_checkpoint(tmp_path / "model").weights().layers)


def test_layers_are_a_sequence_read_on_access(tmp_path: Path) -> None:
    write_folder(tiny_model("llama"), tmp_path)
    layers = open_checkpoint(tmp_path).weights().layers
    assert len(layers) == 2
    assert len(layers[:1]) == 1
    np.testing.assert_array_equal(layers[-1].q.to_float32(), layers[1].q.to_float32())
    assert layers[0] is not layers[0]
    with pytest.raises(IndexError):
        layers[2]


def test_weights_outlive_their_checkpoint(tmp_path: Path) -> None:
    held = write_gguf(tiny_model("llama"), tmp_path / "model.gguf")
    embedding = open_checkpoint(tmp_path / "model.gguf").weights().embedding
    np.testing.assert_array_equal(embedding.to_float32(), held.tensors["model.embed_tokens.weight"])


# -- what else a checkpoint tells ------------------------------------------------------------------------------------


def test_a_gguf_is_known_by_its_first_bytes_not_by_its_name(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "model.bin")
    assert open_checkpoint(tmp_path / "model.bin").architecture.family == "llama"
    (tmp_path / "model.gguf").write_bytes(b"PK\3\4 not this")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(tmp_path / "model.gguf")


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_checkpoint(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_model("llama").config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04 pickled")
    with pytest.raises(ModelNotFound, match="never opened"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("format", "file_type", "label"),
    [("Q4_K", 15, "Q4_K_M"), ("Q6_K", 15, "Q6_K"), ("Q8_0", 7, "Q8_0"), ("Q8_0", 999, "Q8_0"), ("F16", 1, "f16")],
)
def test_the_label_follows_the_file_type_only_where_most_weights_agree(
    tmp_path: Path, format: str, file_type: int, label: str
) -> None:
    metadata = {"general.file_type": file_type}
    write_gguf(tiny_model("llama", **WIDE), tmp_path / "model.gguf", format, metadata)
    assert open_checkpoint(tmp_path / "model.gguf").quantisation == label


def test_recommended_sampling_of_a_folder(tmp_path: Path) -> None:
    write_folder(tiny_model("llama"), tmp_path)
    recommended = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "eos_token_id": [258, 256],
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(recommended | {"min_p": None, "max_length": 20}))
    checkpoint = open_checkpoint(tmp_path)
    eos = recommended.pop("eos_token_id")
    assert checkpoint.generation_defaults == recommended
    assert list(checkpoint.architecture.eos_token_ids) == eos


def test_recommended_sampling_of_a_gguf(tmp_path: Path) -> None:
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40, "general.sampling.penalty_repeat": 1.25}
    write_gguf(tiny_model("llama"), tmp_path / "model.gguf", metadata=metadata)
    defaults = open_checkpoint(tmp_path / "model.gguf").generation_defaults
    assert defaults == {"temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("temperature", "hot", "must be a finite number"),
        ("temperature", -1, "not within"),
        ("top_k", 1.5, "must be an integer"),
        ("top_p", 7, "not within"),
        ("top_p", 0, "not above 0"),
        ("min_p", 1.1, "not within"),
        ("repetition_penalty", 0, "not above 0"),
    ],
)
def test_a_bad_recommendation_is_an_error(tmp_path: Path, name: str, value: object, problem: str) -> None:
    write_folder(tiny_model("llama"), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {name} .*{problem}"):
        open_checkpoint(tmp_path)


def test_the_readers_agree_with_the_official_one(tmp_path: Path) -> None:
    write_gguf(tiny_model("qwen2"), tmp_path / "model.gguf", "Q5_1")
    official = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    ours = open_checkpoint(tmp_path / "model.gguf").tensors
    assert ours.keys() == official.keys()
    for name, tensor in ours.items():
        assert tensor.shape == tuple(int(d) for d in official[name].shape[::-1])
        assert tensor.data.tobytes() == official[name].data.tobytes()


def test_tokenizer_of_a_gguf(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "model.gguf")
    source = open_checkpoint(tmp_path / "model.gguf").tokenizer_files()
    assert source.kind == "gguf"
    assert source.chat_template == CHAT_TEMPLATE
    assert source.gguf_metadata["tokenizer.ggml.model"] == "gpt2"
    assert len(source.gguf_metadata["tokenizer.ggml.tokens"]) == 288
    assert all(key.startswith("tokenizer.") for key in source.gguf_metadata)
