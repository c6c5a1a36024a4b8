"""Counter-based random numbers: a token's noise is a pure function of (seed, position, token id).

Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). There is no state to carry, so a
row draws the same noise alone or in a batch, on one thread or many, preempted or not, in any implementation:

    key     = (low 32 bits of the seed, high 32 bits of the seed)
    counter = (token_id // 4, position, 0, 0)
    word    = philox(counter, key)[token_id % 4]
    u       = ((word >> 9) + 0.5) * 2**-23
    noise   = -log(-log(u))

23 bits, because ``u`` is then exact in float32 and never 0 or 1: with 24, the largest word would round to u = 1 and
give one token infinite noise, once in 2**24 draws, which a vocabulary of 50,000 meets every few hundred tokens.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds over ``counter`` [n, 4] with one ``key`` of two 32-bit words. Returns [n, 4]."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint32) for i in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint32(k0), low1, high0 ^ c3 ^ np.uint32(k1), low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def _multiply(x: Words, by: np.uint64) -> tuple[Words, Words]:
    """High and low halves of the 64-bit products."""
    product = x.astype(np.uint64) * by
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def uniform(words: Words) -> NDArray[np.float32]:
    """Float32 in (0, 1), exact multiples of 2**-24: from 2**-24 to 1 - 2**-24."""
    return ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def gumbel_noise(seed: int, position: int, vocab_size: int) -> NDArray[np.float32]:
    """Standard Gumbel noise [vocab_size] for the token at ``position``; ``seed`` is taken modulo 2**64."""
    counter = np.zeros((-(-vocab_size // 4), 4), np.uint32)
    counter[:, 0] = np.arange(len(counter), dtype=np.uint32)
    counter[:, 1] = position
    words = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK)).reshape(-1)[:vocab_size]
    return -np.log(-np.log(uniform(words)))
