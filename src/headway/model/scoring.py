"""Logits of a whole sequence, outside the engine: what quality checks and tests of the decoder need."""

from collections.abc import Sequence

import numpy as np

from headway.model.architecture import Architecture, ModelWeights
from headway.model.decoder import Decoder
from headway.ops.contract import Backend, Float32, KVLayout, StepInput, StepLimits, StepProgram

BLOCK_SIZE = 16


def scoring_program(
    architecture: Architecture, weights: ModelWeights, backend: Backend, max_context: int, kv_dtype: str = "f32"
) -> StepProgram:
    """A decoder with KV blocks for one sequence of ``max_context`` tokens."""
    num_blocks = -(-max_context // BLOCK_SIZE)
    layout = KVLayout(architecture.num_kv_heads, architecture.head_dim, num_blocks, BLOCK_SIZE, kv_dtype)
    kv_layers = [backend.new_kv_cache(layout) for _ in architecture.layers]
    decoder = Decoder(architecture, weights, backend, kv_layers, max_context)
    return backend.compile(decoder.forward, StepLimits(max_context, max_context, max_context))


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
