import pytest

from headway.errors import CheckpointError, UnsupportedModel
from headway.model.architecture import Architecture, RopeScaling
from headway.model.hf_config import MODEL_TYPES, hf_architecture
from tiny_checkpoints import FAMILIES, tiny_config


def architecture(family: str, generation: dict | None = None, **changes: object) -> Architecture:
    """``changes`` replace entries; None removes one. For a null in the file use ``with_null``."""
    return hf_architecture(tiny_config(family, **changes), generation or {}, "config.json")


def with_null(family: str, *keys: str, **changes: object) -> Architecture:
    config = tiny_config(family, **changes) | dict.fromkeys(keys)
    return hf_architecture(config, {}, "config.json")


def windows(arch: Architecture) -> list[int]:
    return [layer.window for layer in arch.layers]


# -- families --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_what_makes_each_family(family: str) -> None:
    arch = architecture(family)
    assert arch.family == {"mistral": "llama"}.get(family, family)
    assert arch.qkv_bias == (family == "qwen2")
    assert arch.qk_norm == (family in ("qwen3", "gemma3"))
    assert arch.sandwich_norms == (family == "gemma3")
    assert arch.activation == ("gelu_tanh" if family == "gemma3" else "silu")
    assert arch.embedding_scale == (8.0 if family == "gemma3" else 1.0)
    assert (arch.vocab_size, arch.hidden_size, arch.max_context) == (288, 64, 256)


@pytest.mark.parametrize(("family", "model_type"), list(zip(FAMILIES, MODEL_TYPES, strict=True)))
def test_model_type_without_architectures(family: str, model_type: str) -> None:
    assert architecture(family, architectures=None) == architecture(family)
    assert architecture(family).family == MODEL_TYPES[model_type].family


@pytest.mark.parametrize("model_type", ["mixtral", "phi3", "gemma2", "gemma3", "Llama", ""])
def test_an_unknown_model_type_lists_the_known_ones(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"known: llama, mistral, qwen2, qwen3, gemma3_text"):
        architecture("llama", model_type=model_type)


@pytest.mark.parametrize("classes", [["LlamaForSequenceClassification"], ["LlamaModel"], "LlamaForCausalLM", [3]])
def test_another_class_of_a_known_type_is_refused(classes: object) -> None:
    with pytest.raises(UnsupportedModel, match="served only as LlamaForCausalLM"):
        architecture("llama", architectures=classes)


@pytest.mark.parametrize(
    ("family", "feature"),
    [
        ("gemma3", {"final_logit_softcapping": 30.0}),
        ("gemma3", {"attn_logit_softcapping": 50.0}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("qwen2", {"num_experts": 8}),
        ("llama", {"num_local_experts": 8}),
        ("llama", {"quantization_config": {"quant_method": "awq"}}),
        ("llama", {"text_config": {"hidden_size": 64}}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"logits_scaling": 8.0}),
        ("llama", {"sliding_window": 4096}),
        ("llama", {"hidden_act": "gelu"}),
        ("gemma3", {"hidden_activation": "relu"}),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}),
    ],
)
def test_features_that_are_not_built_are_named(family: str, feature: dict) -> None:
    with pytest.raises(
        UnsupportedModel, match=next(iter(feature)) if "layer_types" not in feature else "linear_attention"
    ):
        architecture(family, **feature)


def test_the_same_features_switched_off_are_harmless() -> None:
    off = {
        "quantization_config": {},
        "num_experts": 0,
        "partial_rotary_factor": 1.0,
        "use_bidirectional_attention": False,
    }
    assert architecture("gemma3", **off) == architecture("gemma3")
    keys = ("final_logit_softcapping", "attn_logit_softcapping", "rope_scaling", "text_config", "layer_types")
    assert with_null("gemma3", *keys) == architecture("gemma3")


# -- shapes, biases, tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_head_dim_wins_over_the_quotient(family: str) -> None:
    """As in Mistral-Nemo: head_dim 128 with hidden 5120 over 32 heads."""
    arch = architecture(family, hidden_size=5120, num_attention_heads=32, head_dim=128)
    assert arch.head_dim == 128
    assert with_null(family, "head_dim", hidden_size=5120, num_attention_heads=32).head_dim == 160


@pytest.mark.parametrize(("family", "default"), [("qwen3", 128), ("gemma3", 256)])
def test_head_dim_defaults_of_the_families_that_have_one(family: str, default: int) -> None:
    assert architecture(family, head_dim=None).head_dim == default


def test_no_key_value_heads_means_one_for_each_head() -> None:
    assert architecture("llama", num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_attention_bias_is_on_all_four_projections(family: str) -> None:
    arch = architecture(family, attention_bias=True)
    assert arch.qkv_bias and arch.output_bias


def test_mlp_bias() -> None:
    assert architecture("llama", mlp_bias=True).mlp_bias
    assert not architecture("llama").mlp_bias


def test_attention_scale_of_gemma() -> None:
    assert architecture("gemma3", query_pre_attn_scalar=168).scale == pytest.approx(168**-0.5)
    assert architecture("gemma3", query_pre_attn_scalar=None).scale == 1 / 16
    assert architecture("llama").scale == 0.25


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (258, None, (258,)),
        ([258, 256], None, (258, 256)),
        (258, 256, (258, 256)),
        (258, [257, 258], (258, 257)),
        (None, [257], (257,)),
        (None, None, ()),
    ],
)
def test_end_ids_come_from_both_files(config: object, generation: object, expected: tuple[int, ...]) -> None:
    assert architecture("llama", {"eos_token_id": generation}, eos_token_id=config).eos_token_ids == expected


@pytest.mark.parametrize("bad", [288, -1, 1.5, True, "2", [258, "x"], {"id": 2}])
@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
def test_bad_token_ids_are_named(key: str, bad: object) -> None:
    with pytest.raises(CheckpointError, match="token id"):
        architecture("llama", **{key: bad})


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        *[(key, bad) for key in ("hidden_size", "num_hidden_layers") for bad in (0, -1, 2**40, 1.5, "8", True, [])],
        ("vocab_size", 2**40),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", 100_000),
        ("head_dim", 15),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", float("inf")),
        ("rope_theta", 0.5),
        ("tie_word_embeddings", "yes"),
        ("hidden_act", 3),
        ("max_position_embeddings", 0),
        ("rope_scaling", [1]),
        ("sliding_window", "x"),
        ("layer_types", ["full_attention"]),
        ("layer_types", "full_attention"),
    ],
)  # fmt: skip
def test_values_of_wrong_type_or_range(key: str, bad: object) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        architecture("mistral", **{key: bad})


@pytest.mark.parametrize(
    "key", ["model_type", "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"]
)
def test_missing_keys_are_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is missing"):
        architecture("llama", **{key: None})


# -- sliding windows -------------------------------------------------------------------------------------------------


def test_mistral_slides_on_every_layer_unless_the_window_is_null() -> None:
    assert windows(architecture("mistral")) == [24, 24]
    assert windows(architecture("mistral", sliding_window=None)) == [4096, 4096]  # absent: the class's default
    assert windows(with_null("mistral", "sliding_window")) == [0, 0]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_slides_from_max_window_layers_when_told_to(family: str) -> None:
    assert windows(architecture(family, sliding_window=16, max_window_layers=1)) == [0, 0]
    assert windows(architecture(family, sliding_window=16, max_window_layers=1, use_sliding_window=True)) == [0, 16]
    listed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    assert windows(architecture(family, **listed, use_sliding_window=True)) == [16, 0]
    assert windows(architecture(family, **listed)) == [0, 0]


def test_gemma_slides_except_on_each_sixth_layer() -> None:
    assert windows(architecture("gemma3", num_hidden_layers=7, sliding_window_pattern=None)) == [24] * 5 + [0, 24]
    assert windows(architecture("gemma3", sliding_window_pattern=3)) == [24, 24, 0]
    assert windows(architecture("gemma3", sliding_window_pattern=None, _sliding_window_pattern=2)) == [24, 0, 24]
    listed = ["full_attention", "sliding_attention", "sliding_attention"]
    assert windows(architecture("gemma3", layer_types=listed)) == [0, 24, 24]


# -- rope ------------------------------------------------------------------------------------------------------------


def scaling(family: str = "llama", **rope: object) -> RopeScaling:
    return architecture(family, rope_scaling=rope).layers[-1].rope_scaling


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_both_spellings_of_the_scaling_kind(spelling: str) -> None:
    assert scaling(**{spelling: "linear", "factor": 2.0}) == RopeScaling("linear", 2.0)
    assert scaling(**{spelling: "default"}) == RopeScaling()


def test_spellings_that_disagree_are_refused() -> None:
    with pytest.raises(CheckpointError, match="rope_type is 'yarn' but type is 'linear'"):
        scaling(rope_type="yarn", type="linear", factor=2.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional", ""])
def test_other_scalings_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope scaling '{kind}' is not supported"):
        scaling(rope_type=kind, factor=2.0)


def test_scaling_keys_we_do_not_know_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="mrope_section"):
        scaling(rope_type="default", mrope_section=[16, 24, 24])
    with pytest.raises(UnsupportedModel, match="partial_rotary_factor"):
        scaling(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)


def test_llama3() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert scaling(**rope, original_max_position_embeddings=64) == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
    assert architecture("llama", rope_scaling=rope).max_context == 256  # given scaled already
    with pytest.raises(CheckpointError, match="low_freq_factor is 4"):
        scaling(**rope | {"low_freq_factor": 4.0})
    with pytest.raises(CheckpointError, match="high_freq_factor is missing"):
        scaling(rope_type="llama3", factor=8.0, low_freq_factor=1.0)


def test_yarn_reads_every_parameter() -> None:
    found = scaling(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=64,
        beta_fast=16,
        beta_slow=2,
        attention_factor=1.5,
        mscale=0.7,
        mscale_all_dim=0.8,
        truncate=False,
    )
    assert found == RopeScaling("yarn", 4.0, 64, 1.0, 4.0, 16.0, 2.0, 1.5, 0.7, 0.8, False)


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"factor": 4.0}, 1024),
        ({"factor": None, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_yarn_reaches_original_times_factor(rope: dict, longest: int) -> None:
    assert architecture("qwen2", rope_scaling={"type": "yarn", **rope}).max_context == longest


def test_linear_reaches_what_is_written_unless_the_original_is_named() -> None:
    assert architecture("llama", rope_scaling={"type": "linear", "factor": 4.0}).max_context == 256
    named = {"type": "linear", "factor": 4.0, "original_max_position_embeddings": 128}
    assert architecture("llama", rope_scaling=named).max_context == 512


def test_one_dict_for_all_rope_parameters() -> None:
    rope = {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}
    layer = architecture("llama", rope_theta=None, rope_parameters=rope).layers[0]
    assert (layer.rope_theta, layer.rope_scaling) == (5e5, RopeScaling("linear", 2.0))


def test_rope_of_gemma_by_layer_type_in_both_notations() -> None:
    old = architecture("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0})
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = architecture("gemma3", rope_theta=None, rope_local_base_freq=None, rope_parameters=nested)
    assert old == new
    assert [layer.rope_theta for layer in new.layers] == [1e4, 1e6, 1e4]
    assert [layer.rope_scaling.kind for layer in new.layers] == ["none", "linear", "none"]


def test_default_thetas() -> None:
    assert architecture("llama", rope_theta=None).layers[0].rope_theta == 1e4
    gemma = architecture("gemma3", rope_theta=None, rope_local_base_freq=None)
    assert [layer.rope_theta for layer in gemma.layers] == [1e4, 1e6, 1e4]


def test_parameters_by_layer_type_and_for_all_together_are_refused() -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "factor": 2.0}
    with pytest.raises(UnsupportedModel, match="layer types"):
        architecture("gemma3", rope_parameters=nested)
