import math

import numpy as np
import pytest

from headway.core.batch import NewRequest
from headway.core.request import SamplingParams
from headway.ops.reference import ReferenceBackend
from headway.worker.sampler import Sampler, SamplingState

SAMPLER = Sampler(ReferenceBackend())


def state(*, prompt=(1, 2), output=(), eos=(0,), request_id="r", **params):
    params = {"temperature": 0.0, **params}
    tokens = (*prompt, *output)
    return SamplingState(NewRequest(request_id, tokens, len(prompt), SamplingParams(**params), frozenset(eos)))


def logits(*rows):
    return np.array(rows, np.float32)


def test_tokens_come_back_in_row_order_and_are_appended():
    a, b = state(request_id="a"), state(request_id="b")
    sampled = SAMPLER.sample(logits([0, 0, 5], [0, 5, 0]), [a, b])
    assert [(token.request_id, token.token_id, token.logprobs, token.error) for token in sampled] == [
        ("a", 2, None, None),
        ("b", 1, None, None),
    ]
    assert (a.num_tokens, b.num_tokens) == (3, 3)


def test_no_rows():
    assert SAMPLER.sample(np.zeros((0, 8), np.float32), []) == []


def test_batch_carries_each_rows_own_parameters():
    rows = [
        state(temperature=0.5, top_k=-1, top_p=0.9, seed=-1),
        state(min_p=0.1, repetition_penalty=1.5, prompt=(5, 5, 3), output=(9, 9, 4)),
        state(
            presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((7, 1.5), (2, -100.0)), logprobs=3, output=(4,)
        ),
    ]
    batch = SAMPLER.batch(rows)
    assert batch.temperature.tolist() == [0.5, 0, 0]
    assert batch.top_k.tolist() == [0, 0, 0]
    assert batch.top_p.tolist() == [np.float32(0.9), 1, 1]
    assert batch.min_p.tolist() == [0, np.float32(0.1), 0]
    assert batch.repetition_penalty.tolist() == [1, 1.5, 1]
    assert batch.presence_penalty.tolist() == [0, 0, 0.5]
    assert batch.frequency_penalty.tolist() == [0, 0, 0.25]
    assert batch.seeds.tolist() == [2**64 - 1, 0, 0]
    assert batch.positions.tolist() == [2, 6, 3]
    assert batch.num_logprobs.tolist() == [-1, -1, 3]
    assert (batch.bias_starts.tolist(), batch.bias_ids.tolist()) == ([0, 0, 0, 2], [7, 2])
    assert batch.bias_values.tolist() == [1.5, -100]
    assert (batch.prompt_starts.tolist(), batch.prompt_ids.tolist()) == ([0, 0, 2, 2], [3, 5])
    assert (batch.output_starts.tolist(), batch.output_ids.tolist()) == ([0, 0, 2, 3], [4, 9, 4])
    assert batch.output_counts.tolist() == [1, 2, 1]


def test_arrays_have_the_types_and_layout_kernels_read():
    batch = SAMPLER.batch([state(), state()])
    expected = {"seeds": np.uint64} | dict.fromkeys(
        ("temperature", "top_p", "min_p", "bias_values", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        np.float32,
    )
    for name in batch.__slots__:
        array = getattr(batch, name)
        assert array.dtype == expected.get(name, np.int32) and array.flags.c_contiguous, name


def test_a_resumed_request_samples_as_if_never_preempted():
    params = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "min_tokens": 4}
    rng = np.random.default_rng(0)
    steps = (3 * rng.standard_normal((8, 1, 32))).astype(np.float32)
    whole = state(**params)
    tokens = [SAMPLER.sample(row, [whole])[0].token_id for row in steps]
    for cut in range(8):
        resumed = state(output=tokens[:cut], **params)
        assert [SAMPLER.sample(row, [resumed])[0].token_id for row in steps[cut:]] == tokens[cut:]


def test_min_tokens_bans_every_way_to_end_until_reached():
    request = state(eos=(0,), stop_token_ids=(1,), min_tokens=2)
    row = logits([9, 8, 7, 6])
    assert [SAMPLER.sample(row, [request])[0].token_id for _ in range(3)] == [2, 2, 0]


def test_min_tokens_leaves_eos_alone_where_it_does_not_end_the_request():
    request = state(eos=(0,), stop_token_ids=(1,), min_tokens=2, ignore_eos=True)
    assert request.banned_ids.tolist() == [1]
    assert SAMPLER.sample(logits([9, 8, 7]), [request])[0].token_id == 0


def test_textless_ids_are_never_chosen():
    sampler = Sampler(ReferenceBackend(), textless_ids=(3, 2))
    rows = [state(), state(eos=(1,), min_tokens=1)]
    assert [token.token_id for token in sampler.sample(logits([0, 1, 9, 9], [0, 1, 9, 9]), rows)] == [1, 0]


def test_penalties_follow_the_output_as_it_grows():
    request = state(presence_penalty=2.0)
    assert [SAMPLER.sample(logits([0, 3, 2, 0]), [request])[0].token_id for _ in range(3)] == [1, 2, 1]


def test_output_ids_stay_distinct_and_ascending():
    request = state(frequency_penalty=0.1, output=(7, 3, 7))
    for token_id in (5, 3, 9, 0, 3):
        request.append(token_id)
    assert request.output_ids.tolist() == [0, 3, 5, 7, 9]
    assert request.output_counts.tolist() == [1, 3, 1, 2, 1]


def test_a_failed_row_says_why_and_harms_no_other():
    rows = [state(request_id="bad"), state(request_id="good"), state(request_id="banned", eos=(0, 1), min_tokens=1)]
    bad, good, banned = SAMPLER.sample(logits([math.nan, 1], [0, 1], [0, 1]), rows)
    assert good.token_id == 1 and good.error is None
    assert "no token could be sampled" in bad.error and "min_tokens" in banned.error
    assert [row.num_tokens for row in rows] == [2, 3, 2]


def test_logprobs_are_finite_and_as_many_as_asked_for():
    rows = [state(logprobs=n) for n in (None, 0, 2, 50)]
    sampled = SAMPLER.sample(logits(*[[-math.inf, 2, 1]] * 4), rows)
    assert sampled[0].logprobs is None and sampled[1].logprobs.top == ()
    assert [token_id for token_id, _ in sampled[2].logprobs.top] == [1, 2]
    assert [token_id for token_id, _ in sampled[3].logprobs.top] == [1, 2, 0]
    assert sampled[3].logprobs.top[-1][1] == -9999
    assert sampled[1].logprobs.logprob == sampled[2].logprobs.top[0][1] == pytest.approx(-math.log(1 + math.exp(-1)))


def test_a_random_request_must_have_a_seed():
    with pytest.raises(ValueError, match="seed"):
        state(temperature=1.0)


def test_what_is_kept_from_step_to_step_is_what_would_be_made_anew():
    """Requests come and go, and some change with every token: a sampler that keeps its batch gives the same tokens."""
    kept, rng = Sampler(ReferenceBackend()), np.random.default_rng(0)
    makers = [
        lambda i: {"temperature": 0.8, "seed": i},
        lambda i: {"min_tokens": 5},
        lambda i: {"repetition_penalty": 1.7},
        lambda i: {"logit_bias": ((i % 8, 3.0),), "logprobs": 2},
    ]
    rows, others = [], []
    for step in range(120):  # from step 90 on all are of the kind that settles
        if step % 7 == 0 or not rows:
            made = makers[rng.integers(4) if step < 90 else 0](step)
            rows.append(state(request_id=f"r{step}", **made))
            others.append(state(request_id=f"r{step}", **made))
        if step % 13 == 12:
            gone = int(rng.integers(len(rows)))
            del rows[gone], others[gone]
        values = rng.standard_normal((len(rows), 8)).astype(np.float32)
        assert kept.sample(values, rows) == Sampler(ReferenceBackend()).sample(values, others), step
