import numpy as np
import pytest

from headway.ops.philox import gumbel_noise
from headway.ops.sampling import adjusted_logits, kept_ids, sample_reference
from sampling_batches import sampling_batch

NEG_INF = float("-inf")


def floats(*values):
    return np.array(values, np.float32)


def random_logits(rows, vocab_size, seed=0):
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocab_size))).astype(np.float32)


def sample(logits, *rows):
    return sample_reference(np.atleast_2d(logits), sampling_batch(*rows)).token_ids.tolist()


def kept(logits, top_k=0, top_p=1.0, min_p=0.0):
    return kept_ids(logits - logits.max(), top_k, top_p, min_p).tolist()


# -- greedy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_temperature_zero_is_argmax_with_the_lowest_id_on_a_tie(temperature):
    assert sample(floats(1, 5, 5, 2), {"temperature": temperature}) == [1]


def test_greedy_ignores_seed_and_filters():
    row = {"temperature": 0.0, "top_k": 3, "top_p": 0.1, "min_p": 0.5}
    logits = random_logits(1, 100)
    assert {sample(logits, {**row, "seed": s})[0] for s in range(20)} == {int(logits.argmax())}


# -- what may be drawn -------------------------------------------------------------------------------------------------


def test_top_k_keeps_k_and_breaks_ties_towards_the_lower_id():
    logits = floats(1, 3, 2, 3, 2, 2)
    assert kept(logits, top_k=1) == [1]
    assert kept(logits, top_k=3) == [1, 2, 3]
    assert kept(logits, top_k=4) == [1, 2, 3, 4]


def test_ties_go_to_the_lower_id_in_a_large_vocabulary():
    logits = np.round(random_logits(1, 5000)[0])
    expected = sorted(range(5000), key=lambda i: (-logits[i], i))[:300]
    assert kept(logits, top_k=300) == sorted(expected)
    output = sample_reference(logits[None], sampling_batch({"num_logprobs": 300}))
    assert output.top_ids[0].tolist() == expected


@pytest.mark.parametrize("top_k", [0, -1, 6, 1000])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k):
    assert kept(floats(1, 3, 2, 3, 2, 2), top_k=top_k) == list(range(6))


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.0, [2]), (1e-4, [2]), (0.5, [2]), (0.51, [1, 2]), (0.75, [1, 2]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p, expected):
    assert kept(np.log(floats(0.125, 0.25, 0.5, 0.125)), top_p=top_p) == expected


def test_top_p_counts_what_top_k_left():
    probabilities = np.log(floats(0.4, 0.3, 0.2, 0.1))
    assert kept(probabilities, top_p=0.5) == [0, 1]
    assert kept(probabilities, top_k=2, top_p=0.5) == [0]  # 0.4 / 0.7 > 0.5


@pytest.mark.parametrize(("min_p", "expected"), [(0.0, [0, 1, 2]), (0.25, [0, 1]), (0.6, [0]), (1.0, [0])])
def test_min_p_is_relative_to_the_most_likely(min_p, expected):
    assert kept(np.log(floats(0.6, 0.3, 0.1)), min_p=min_p) == expected


def test_filters_of_one_row_do_not_reach_another():
    """Greedy with top_k off beside top_k 64, at a vocabulary of 128, and every other mixture."""
    logits = random_logits(6, 128)
    rows = [
        {"temperature": 0.0},
        {"top_k": 64, "seed": 1},
        {"top_k": 1, "seed": 2},
        {"top_p": 0.1, "seed": 3},
        {"min_p": 0.2, "seed": 4, "repetition_penalty": 1.5, "prompt": [int(logits[4].argmax())]},
        {"bias": {7: 100.0}, "banned": [1], "output": {7: 3}, "frequency_penalty": 2.0},
    ]
    together = sample(logits, *rows)
    assert together == [sample(logits[i], rows[i])[0] for i in range(6)]
    assert together[::-1] == sample(logits[::-1], *rows[::-1])
    assert together[0] == logits[0].argmax() and together[2] == logits[2].argmax() and together[5] == 7


# -- changes of the logits ---------------------------------------------------------------------------------------------


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    batch = sampling_batch({"repetition_penalty": 2.0, "prompt": [0, 1], "output": {1: 5, 2: 1}})
    assert adjusted_logits(floats(4, -4, 3, 5), batch, 0).tolist() == [2, -8, 1.5, 5]


def test_repetition_penalty_has_an_effect_on_its_row_only():
    row = {"temperature": 0.0, "prompt": [0]}
    logits = np.stack([floats(3, 2.5), floats(3, 2.5)])
    penalised = {**row, "repetition_penalty": 1.5}
    assert sample(logits, row, penalised) == [0, 1]
    assert sample(logits, penalised, row) == [1, 0]


def test_presence_and_frequency_count_the_output_only():
    batch = sampling_batch({"presence_penalty": 0.5, "frequency_penalty": 0.25, "prompt": [0], "output": {1: 4, 2: 1}})
    assert adjusted_logits(floats(1, 1, 1, 1), batch, 0).tolist() == [1, -0.5, 0.25, 1]


def test_bias_comes_before_the_penalties_and_bans_win_over_bias():
    row = {"bias": {0: 10.0, 1: -3.0, 2: 100.0}, "banned": [2], "repetition_penalty": 2.0, "prompt": [0, 1, 2]}
    assert adjusted_logits(floats(-1, 1, 0), sampling_batch(row), 0).tolist() == [4.5, -4, NEG_INF]


def test_parameters_do_not_change_the_callers_logits():
    logits = random_logits(1, 16)
    before = logits.copy()
    sample(logits, {"bias": {1: 5.0}, "banned": [2], "repetition_penalty": 2.0, "prompt": [3], "num_logprobs": 3})
    assert (logits == before).all()


# -- extremes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [{"temperature": 1e-4}, {"top_p": 1e-4}, {"temperature": 1e-5}, {"top_p": 0.0}])
def test_tiny_temperature_and_top_p_are_greedy_like(row):
    logits = random_logits(8, 1000)
    assert sample(logits, *[{**row, "seed": s} for s in range(8)]) == logits.argmax(axis=1).tolist()


@pytest.mark.filterwarnings("error")
def test_extreme_finite_logits_and_temperatures_give_a_token():
    logits = floats(3.4e38, -3.4e38, 0, 1)
    for temperature in (0.0, 1e-5, 1.0, 1e30):
        assert sample(logits, {"temperature": temperature, "num_logprobs": 2}) == [0]


def test_rows_that_cannot_be_sampled_fail_alone():
    logits = random_logits(5, 8)
    logits[1, 3] = np.nan
    logits[2, 3] = np.inf
    logits[3] = -np.inf
    rows = [{"seed": 1}, {}, {}, {}, {"banned": list(range(8))}]
    assert sample(logits, *rows) == [sample(logits[0], {"seed": 1})[0], -1, -1, -1, -1]


def test_masked_logits_are_never_drawn():
    logits = np.full(64, -np.inf, np.float32)
    logits[[5, 40]] = -2.0
    assert {sample(logits, {"seed": s})[0] for s in range(50)} == {5, 40}


def test_a_batch_may_be_empty():
    output = sample_reference(np.zeros((0, 8), np.float32), sampling_batch())
    assert output.token_ids.shape == (0,) and output.top_ids.shape == (0, 0)


# -- randomness --------------------------------------------------------------------------------------------------------


def test_the_draw_is_the_gumbel_maximum_of_the_stated_noise():
    logits = random_logits(1, 200)[0]
    for seed in range(20):
        expected = (logits - logits.max()) / np.float32(0.7) + gumbel_noise(seed, 9, 200)
        assert sample(logits, {"temperature": 0.7, "seed": seed, "position": 9}) == [int(expected.argmax())]


def test_seeds_and_positions_differ():
    logits = np.zeros(1000, np.float32)
    assert len({sample(logits, {"seed": s})[0] for s in range(50)}) > 40
    assert len({sample(logits, {"position": p})[0] for p in range(50)}) > 40
    assert sample(logits, {"seed": 2**64 - 1}) == sample(logits, {"seed": 2**64 - 1})


@pytest.mark.parametrize(
    "row", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 8, "top_p": 0.9}]
)
def test_frequencies_match_the_renormalised_softmax(row):
    """Chi-square over 2,000 draws with fixed seeds; the bound is the 99.9th percentile at 15 degrees of freedom."""
    logits, num_draws = random_logits(1, 16, seed=5)[0] / 2, 2000
    w = (logits - logits.max()) / np.float32(row.get("temperature", 1.0))
    allowed = kept_ids(w, row.get("top_k", 0), row.get("top_p", 1.0), row.get("min_p", 0.0))
    expected = np.zeros(16)
    expected[allowed] = np.exp(w[allowed]) / np.exp(w[allowed]).sum() * num_draws
    rows = [{**row, "seed": s // 40, "position": s % 40} for s in range(num_draws)]
    drawn = np.bincount(sample(np.tile(logits, (num_draws, 1)), *rows), minlength=16)
    assert drawn[expected == 0].sum() == 0
    used = expected > 0
    assert ((drawn[used] - expected[used]) ** 2 / expected[used]).sum() < 37.7


# -- logprobs ----------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_unmodified_logits():
    logits = random_logits(1, 50)
    row = {"temperature": 0.0, "bias": {7: 100.0}, "num_logprobs": 3}
    output = sample_reference(logits, sampling_batch(row))
    expected = logits[0].astype(float) - np.log(np.exp(logits[0].astype(float)).sum())
    assert output.token_ids.tolist() == [7]
    assert output.logprobs[0] == pytest.approx(expected[7], abs=1e-5)
    top = np.argsort(-expected)[:3]
    assert output.top_ids[0].tolist() == top.tolist()
    assert output.top_logprobs[0] == pytest.approx(expected[top], abs=1e-5)


def test_top_logprobs_break_ties_towards_the_lower_id_and_are_padded_per_row():
    logits = np.tile(floats(1, 2, 2, 0), (4, 1))
    rows = [{"num_logprobs": n, "temperature": 0.0} for n in (3, 0, -1, 1)]
    output = sample_reference(logits, sampling_batch(*rows))
    assert output.top_ids.tolist() == [[1, 2, 0], [-1] * 3, [-1] * 3, [1, -1, -1]]
    assert output.logprobs[0] == output.logprobs[1] == output.logprobs[3] < 0


def test_more_logprobs_than_tokens_are_clamped():
    output = sample_reference(floats(1, 2)[None], sampling_batch({"num_logprobs": 20, "temperature": 0.0}))
    assert output.top_ids.tolist() == [[1, 0]]


def test_logprobs_are_floored_to_stay_finite():
    logits = floats(NEG_INF, 0, -3e38)[None]
    output = sample_reference(logits, sampling_batch({"num_logprobs": 3, "top_k": 1}))
    assert output.top_ids.tolist() == [[1, 2, 0]]
    assert output.top_logprobs.tolist() == [[0, -9999, -9999]]


def test_a_failed_row_has_no_logprobs():
    output = sample_reference(floats(np.nan, 1)[None], sampling_batch({"num_logprobs": 1}))
    assert output.token_ids.tolist() == [-1]
    assert output.top_ids.tolist() == [[-1]] and output.logprobs.tolist() == [0]
