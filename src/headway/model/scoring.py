"""Logits of a whole sequence, outside the engine, and what they say of a model's quality: for tests and benchmarks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.model.architecture import Architecture, ModelWeights
from headway.model.decoder import Decoder
from headway.ops.contract import Backend, Float32, KVLayout, StepInput, StepLimits, StepProgram

BLOCK_SIZE = 16
Float64 = NDArray[np.float64]


def scoring_program(
    architecture: Architecture, weights: ModelWeights, backend: Backend, max_context: int, kv_dtype: str = "f32"
) -> StepProgram:
    """A decoder with KV blocks for one sequence of ``max_context`` tokens."""
    num_blocks = -(-max_context // BLOCK_SIZE)
    layout = KVLayout(architecture.num_kv_heads, architecture.head_dim, num_blocks, BLOCK_SIZE, kv_dtype)
    kv_layers = backend.new_kv_cache(layout, len(architecture.layers))
    decoder = Decoder(architecture, weights, backend, kv_layers, max_context)
    return backend.compile(decoder.forward, StepLimits(max_context, max_context))


def sequence_logits(program: StepProgram, token_ids: Sequence[int], chunk: int = 0) -> Float32:
    """Logits [n, vocabulary] after each of the n tokens, computed ``chunk`` tokens a step (0: all in one)."""
    chunk = chunk or len(token_ids)
    starts = range(0, len(token_ids), chunk)
    return np.concatenate([program.run(_step(token_ids, i, min(i + chunk, len(token_ids)))).copy() for i in starts])


def _step(token_ids: Sequence[int], start: int, end: int) -> StepInput:
    return StepInput(
        token_ids=np.array(token_ids[start:end], np.int32),
        positions=np.arange(start, end, dtype=np.int32),
        row_starts=np.array([0, end - start], np.int32),
        block_tables=np.arange(-(-end // BLOCK_SIZE), dtype=np.int32)[None],
        logit_rows=np.arange(end - start, dtype=np.int32),
    )


def log_probabilities(logits: Float32) -> Float64:
    """Natural log-softmax of each row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def kl_divergence(expected: Float64, actual: Float64) -> Float64:
    """KL(expected || actual) of each row, in nats, for natural log-probabilities [n, outcomes] that each sum to 1."""
    difference = np.where(np.isneginf(expected), 0.0, expected - actual)  # 0 log 0 = 0
    result: Float64 = (np.exp(expected) * difference).sum(axis=1)
    return result


def keep_some(logprobs: Float64, ids: NDArray[np.integer]) -> Float64:
    """[n, kept + 1]: the log-probabilities of ``ids`` [n, kept], then that of all the others together.

    A divergence between distributions merged so is a lower bound of that between the whole ones (data processing
    inequality).
    """
    kept = np.take_along_axis(logprobs, ids.astype(np.int64), axis=1)
    return np.concatenate([kept, log_rest(kept)], axis=1)


def log_rest(logprobs: Float64) -> Float64:
    """[n, 1]: the log of the probability that ``logprobs`` [n, kept] leave out; at least 1e-12: less is rounding."""
    result: Float64 = np.log(np.maximum(1e-12, 1 - np.exp(logprobs).sum(axis=1, keepdims=True)))
    return result


def perplexity(logprobs: Float64, token_ids: Sequence[int]) -> float:
    """exp of the mean surprise at each token but the first, for log-probabilities [n, vocabulary] after each."""
    next_ids = np.asarray(token_ids)[1:, None]
    return float(np.exp(-np.take_along_axis(logprobs[:-1], next_ids, axis=1).mean()))
