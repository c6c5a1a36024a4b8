import numpy as np
import pytest

from headway.ops.philox import gumbel_noise, philox4x32, uniform

# The known answers published with the Random123 library: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    assert philox4x32(np.array([counter], np.uint32), key)[0].tolist() == list(expected)


def test_vectorised_equals_one_at_a_time():
    counter = np.random.default_rng(0).integers(0, 2**32, (17, 4), dtype=np.uint32)
    key = (0x12345678, 0x9ABCDEF0)
    one_at_a_time = [philox4x32(counter[i : i + 1], key)[0] for i in range(len(counter))]
    assert (philox4x32(counter, key) == np.stack(one_at_a_time)).all()


def test_uniform_is_open_at_both_ends_and_exact():
    u = uniform(np.array([0, 0x1FF, 0x200, 0x80000000, 0xFFFFFFFF], np.uint32))
    assert u.dtype == np.float32
    assert u.tolist() == [2.0**-24, 2.0**-24, 3 * 2.0**-24, 0.5 + 2.0**-24, 1 - 2.0**-24]


def test_noise_is_finite_at_the_extreme_words():
    extremes = uniform(np.array([0, 0xFFFFFFFF], np.uint32))
    assert np.isfinite(-np.log(-np.log(extremes))).all()


def test_noise_depends_on_seed_position_and_token_only():
    noise = gumbel_noise(7, 3, 1001)
    assert noise.shape == (1001,) and noise.dtype == np.float32
    assert (gumbel_noise(7, 3, 10) == noise[:10]).all()  # not on the vocabulary's size
    assert (gumbel_noise(8, 3, 1001) != noise).any()
    assert (gumbel_noise(7 + (1 << 32), 3, 1001) != noise).any()  # the seed's high half counts
    assert (gumbel_noise(7, 4, 1001) != noise).any()
    assert (gumbel_noise(7 + (1 << 64), 3, 1001) == noise).all()


def test_noise_follows_the_stated_recipe():
    seed, position, token_id = (5 << 32) | 9, 11, 4 * 123 + 2
    word = int(philox4x32(np.array([[123, position, 0, 0]], np.uint32), (9, 5))[0, 2])
    u = np.float32(((word >> 9) + 0.5) / 2**23)
    assert gumbel_noise(seed, position, 4096)[token_id] == pytest.approx(-np.log(-np.log(u)), rel=1e-6)


def test_noise_has_the_moments_of_a_gumbel():
    noise = np.concatenate([gumbel_noise(seed, 0, 4096) for seed in range(32)]).astype(np.float64)
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.05
