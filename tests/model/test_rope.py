"""Golden numbers: transformers 5.24, ROPE_INIT_FUNCTIONS, float32, at dimension pairs 0, d/8, d/4, 3d/8 and d/2 - 1."""

import math

import numpy as np
import pytest

from headway.model.architecture import LayerKind, RopeScaling
from headway.model.rope import rope_frequencies, rope_table, yarn_attention_factor

LLAMA3 = RopeScaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = RopeScaling("yarn", 4.0, 32768)
YARN_WITH_ALL = RopeScaling("yarn", 4.0, 4096, beta_fast=16.0, beta_slow=2.0, attention_factor=1.25, truncate=False)
YARN_MSCALE = RopeScaling("yarn", 40.0, 4096, mscale=1.0, mscale_all_dim=0.707)

GOLDEN = {
    "linear": (
        (1e4, 64, RopeScaling("linear", 4.0)),
        ([0.25, 0.02500000037252903, 0.0024999999441206455, 0.0002500000118743628, 3.333803761051968e-05], 1.0),
    ),
    "llama3": (
        (5e5, 128, LLAMA3),
        ([1.0, 0.03760603070259094, 0.0005248460220173001, 6.647869668086059e-06, 3.068925877869333e-07], 1.0),
    ),
    "yarn": (
        (1e6, 128, YARN),
        (
            [1.0, 0.03162277862429619, 0.0006029411451891065, 7.905693564680405e-06, 3.102344408034696e-07],
            1.138629436111989,
        ),
    ),
    "yarn with every parameter": (
        (1e6, 64, YARN_WITH_ALL),
        ([1.0, 0.03162277862429619, 0.0002500000118743628, 7.905693564680405e-06, 3.8498163235090033e-07], 1.25),
    ),
    "yarn with mscales": (
        (1e4, 64, YARN_MSCALE),
        (
            [1.0, 0.10000000149011612, 0.005500000435858965, 2.499999936844688e-05, 3.3338035336782923e-06],
            1.0857263992561355,
        ),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_frequencies_match_transformers(name: str) -> None:
    (theta, d, scaling), (expected, factor) = GOLDEN[name]
    frequencies, found_factor = rope_frequencies(LayerKind(0, theta, scaling), d)
    assert frequencies.shape == (d // 2,)
    np.testing.assert_allclose(frequencies[[0, d // 8, d // 4, 3 * d // 8, -1]], expected, rtol=1e-6)
    assert found_factor == pytest.approx(factor, rel=1e-12)


def test_yarn_with_a_ramp_of_no_width_is_finite() -> None:
    scaling = RopeScaling("yarn", 4.0, 4096, beta_fast=8.0, beta_slow=8.0, truncate=False)
    frequencies, _ = rope_frequencies(LayerKind(0, 1e4, scaling), 64)
    base, _ = rope_frequencies(LayerKind(0, 1e4, RopeScaling()), 64)
    np.testing.assert_allclose(np.unique(np.round(base / frequencies, 6)), [1, 4])


def test_table_holds_cosines_then_sines() -> None:
    table = rope_table(LayerKind(0, 100.0, RopeScaling()), 4, 3)
    assert table.dtype == np.float32
    expected = [[math.cos(p), math.cos(p / 10), math.sin(p), math.sin(p / 10)] for p in range(3)]
    np.testing.assert_allclose(table, expected, rtol=1e-7, atol=1e-9)


def test_far_positions_keep_their_precision() -> None:
    """In float32 the angle of position 131071 would be off by up to 0.004."""
    table = rope_table(LayerKind(0, 1e4, RopeScaling()), 2, 131_072)
    assert table[-1, 0] == np.float32(math.cos(131_071))


def test_yarn_factor_scales_the_table() -> None:
    plain = rope_table(LayerKind(0, 1e6, RopeScaling("yarn", 4.0, 4096, attention_factor=1.0)), 64, 8)
    scaled = rope_table(LayerKind(0, 1e6, RopeScaling("yarn", 4.0, 4096, attention_factor=2.0)), 64, 8)
    np.testing.assert_array_equal(scaled, 2 * plain)


def test_divisors_are_llama3_as_gguf_stores_it() -> None:
    """A converter writes plain frequency / scaled frequency, in float32."""
    plain, _ = rope_frequencies(LayerKind(0, 5e5, RopeScaling()), 128)
    scaled, _ = rope_frequencies(LayerKind(0, 5e5, LLAMA3), 128)
    divisors = tuple((plain / scaled).astype(np.float32).tolist())
    stored, factor = rope_frequencies(LayerKind(0, 5e5, RopeScaling("divisors", divisors=divisors)), 128)
    np.testing.assert_allclose(stored, scaled, rtol=1e-7)
    assert factor == 1.0


def test_a_factor_of_one_sharpens_nothing() -> None:
    assert yarn_attention_factor(RopeScaling("yarn", 1.0, 4096)) == 1.0
    frequencies, _ = rope_frequencies(LayerKind(0, 1e4, RopeScaling("yarn", 1.0, 4096)), 64)
    np.testing.assert_allclose(frequencies, rope_frequencies(LayerKind(0, 1e4, RopeScaling()), 64)[0], rtol=1e-12)
