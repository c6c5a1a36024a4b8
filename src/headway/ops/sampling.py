"""What sampling means, one row at a time, in plain NumPy. Every backend's sampler is tested against this.

The order of effects, all in float32 on a copy of the row's logits (neutral values change nothing):

    1  logit_bias is added
    2  banned ids become -inf
    3  repetition penalty r, on each id of the prompt or the output: divided by r if positive, else multiplied
    4  presence and frequency penalties, on each id of the output: - presence - frequency * count
    5  temperature t below 1e-5: the largest logit, lowest id on a tie, and done; else w = (logit - largest) / t
    6  top_k keeps the k largest, ties to the lower id
    7  top_p keeps the fewest most likely whose probability, renormalised after top_k, reaches p; always one
    8  min_p keeps those at least min_p times as likely as the most likely
    9  the token is the kept one with the largest w + noise (``philox.gumbel_noise``), lowest id on a tie

Step 9 draws exactly from softmax(w) over what was kept (the Gumbel-max trick), so it needs no sum and no second pass.
"""

import numpy as np
from numpy.typing import NDArray

from headway.ops.contract import Float32, SamplerOutput, SamplingBatch
from headway.ops.philox import gumbel_noise

LOGPROB_FLOOR = np.float32(-9999.0)
GREEDY_TEMPERATURE = np.float32(1e-5)
FAILED = -1

Ids = NDArray[np.int64]


def sample_reference(logits: Float32, batch: SamplingBatch) -> SamplerOutput:
    """One token for each row of ``logits`` [m, vocabulary].

    A row with a NaN or +inf logit, or with no finite logit left to choose, gives token -1 and harms no other row.
    ``logprobs`` is 0 where none were asked for or the row failed; unused ``top_ids`` and ``top_logprobs`` are -1.
    """
    num_rows, vocab_size = logits.shape
    width = min(max(int(batch.num_logprobs.max(initial=0)), 0), vocab_size)
    output = SamplerOutput(
        token_ids=np.full(num_rows, FAILED, np.int32),
        logprobs=np.zeros(num_rows, np.float32),
        top_ids=np.full((num_rows, width), -1, np.int32),
        top_logprobs=np.full((num_rows, width), -1, np.float32),
    )
    for i, row in enumerate(logits):
        token_id = sample_row(row, batch, i)
        output.token_ids[i] = token_id
        if token_id != FAILED and batch.num_logprobs[i] >= 0:
            logprobs = log_softmax(row)
            top = most_likely(row, int(batch.num_logprobs[i]))
            output.logprobs[i] = logprobs[token_id]
            output.top_ids[i, : len(top)] = top
            output.top_logprobs[i, : len(top)] = logprobs[top]
    return output


def sample_row(row: Float32, batch: SamplingBatch, i: int) -> int:
    """The token of row ``i``, whose unmodified logits are ``row`` [vocabulary]; -1 if there is none."""
    if np.isnan(row).any() or np.isposinf(row).any():
        return FAILED
    logits = adjusted_logits(row, batch, i)
    best = int(np.argmax(logits))  # the first of equals
    if not np.isfinite(logits[best]):
        return FAILED
    temperature = batch.temperature[i]
    if temperature < GREEDY_TEMPERATURE:
        return best
    with np.errstate(over="ignore"):  # to -inf: no chance at all
        w = (logits - logits[best]) / temperature
    kept = kept_ids(w, int(batch.top_k[i]), float(batch.top_p[i]), float(batch.min_p[i]))
    noise = gumbel_noise(int(batch.seeds[i]), int(batch.positions[i]), len(row))
    return int(kept[np.argmax(w[kept] + noise[kept])])


def adjusted_logits(row: Float32, batch: SamplingBatch, i: int) -> Float32:
    """Steps 1 to 4, on a copy."""
    logits = row.astype(np.float32)
    bias = slice(batch.bias_starts[i], batch.bias_starts[i + 1])
    banned = slice(batch.banned_starts[i], batch.banned_starts[i + 1])
    prompt = slice(batch.prompt_starts[i], batch.prompt_starts[i + 1])
    output = slice(batch.output_starts[i], batch.output_starts[i + 1])

    logits[batch.bias_ids[bias]] += batch.bias_values[bias]
    logits[batch.banned_ids[banned]] = -np.inf
    seen = np.union1d(batch.prompt_ids[prompt], batch.output_ids[output])
    penalty = batch.repetition_penalty[i]
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    counts = batch.output_counts[output].astype(np.float32)
    logits[batch.output_ids[output]] -= batch.presence_penalty[i] + batch.frequency_penalty[i] * counts
    return logits


def kept_ids(w: Float32, top_k: int, top_p: float, min_p: float) -> Ids:
    """Steps 6 to 8: the ids that may be drawn, ascending, for scaled logits ``w`` [vocabulary] whose largest is 0.

    Probabilities are summed in float64, from the most likely down.
    """
    order = np.argsort(-w, kind="stable")  # most likely first, ties to the lower id
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(w[order].astype(np.float64))
    if top_p < 1:
        cumulative = np.cumsum(weights)
        num_kept = 1 + int(np.count_nonzero(cumulative[:-1] < top_p * cumulative[-1]))
        order = order[:num_kept]
    order = order[weights[: len(order)] >= min_p]
    return np.sort(order)


def log_softmax(row: Float32) -> Float32:
    """Natural log-probabilities [vocabulary] of unmodified logits, summed in float64; floored, so all finite."""
    shifted = row.astype(np.float64) - row.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    return np.maximum(logprobs, LOGPROB_FLOOR).astype(np.float32)


def most_likely(row: Float32, count: int) -> Ids:
    """The ``count`` most likely ids (all of them, if there are fewer), most likely first, ties to the lower id."""
    return np.argsort(-row, kind="stable")[:count]
