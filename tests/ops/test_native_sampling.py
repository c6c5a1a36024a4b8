"""The native sampler against ``sample_reference``: equal tokens and alternatives on random mixtures of parameters."""

import numpy as np
import pytest

from headway.ops.sampling import sample_reference
from sampling_batches import sampling_batch

pytest.importorskip("headway._native", reason="the native module is not built")

from headway.ops.native import NativeBackend


def random_row(rng, vocab_size):
    """Each parameter is on in about half of the rows."""
    some = lambda *values: rng.choice(values)  # noqa: E731
    ids = lambda n: [int(i) for i in np.unique(rng.integers(0, vocab_size, n))]  # noqa: E731
    return {
        "temperature": some(0.0, 1e-6, 1e-4, 0.3, 1.0, 2.5),
        "top_k": some(0, -1, 1, 5, vocab_size, vocab_size + 7),
        "top_p": some(1.0, 1.0, 0.9, 0.5, 1e-4, 0.0),
        "min_p": some(0.0, 0.0, 0.05, 1.0),
        "presence_penalty": some(0.0, 0.5, -1.0),
        "frequency_penalty": some(0.0, 0.3, -0.3),
        "repetition_penalty": some(1.0, 1.2, 0.8),
        "seed": int(rng.integers(0, 2**64, dtype=np.uint64)),
        "position": int(rng.integers(0, 2**31)),
        "num_logprobs": some(-1, 0, 3, vocab_size + 1),
        "bias": {i: float(rng.normal(0, 3)) for i in ids(some(0, 3))},
        "banned": ids(some(0, 4)),
        "prompt": ids(some(0, 20)),
        "output": {i: int(rng.integers(1, 9)) for i in ids(some(0, 20))},
    }


def random_logits(rng, rows, vocab_size):
    """Some rounded so that there are ties, some partly -inf, some that must fail."""
    logits = (3 * rng.standard_normal((rows, vocab_size))).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    logits[1::5, ::2] = -np.inf
    for i, value in enumerate((np.nan, np.inf, -np.inf)):
        logits[7 * i + 3] = value if value == -np.inf else logits[7 * i + 3]
        logits[7 * i + 3, rng.integers(vocab_size)] = value
    return logits


@pytest.mark.parametrize("vocab_size", [1, 7, 128, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_native_samples_what_the_reference_samples(seed, vocab_size):
    rng = np.random.default_rng([seed, vocab_size])
    logits = random_logits(rng, 64, vocab_size)
    batch = sampling_batch(*[random_row(rng, vocab_size) for _ in range(64)])
    expected = sample_reference(logits, batch)
    for threads in (1, 2):
        output = NativeBackend(threads).sample(logits, batch)
        assert (output.token_ids == expected.token_ids).all()
        assert (output.top_ids == expected.top_ids).all()
        assert np.allclose(output.logprobs, expected.logprobs, atol=1e-5)
        assert np.allclose(output.top_logprobs, expected.top_logprobs, atol=1e-5)
    assert (expected.token_ids[[3, 10, 17]] == -1).all()


def test_a_large_vocabulary_without_filters():
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((16, 50001))).astype(np.float32)
    batch = sampling_batch(*[{"seed": i, "position": 9 * i, "num_logprobs": 20} for i in range(16)])
    output, expected = NativeBackend(2).sample(logits, batch), sample_reference(logits, batch)
    assert (output.token_ids == expected.token_ids).all() and (output.top_ids == expected.top_ids).all()
