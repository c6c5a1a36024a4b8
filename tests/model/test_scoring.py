import math

import numpy as np
import pytest

from headway.model.scoring import keep_some, kl_divergence, log_probabilities, perplexity


def logits(*shape, seed=0):
    return (3 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def test_log_probabilities_sum_to_one_and_survive_large_logits():
    logprobs = log_probabilities(logits(4, 50) + np.float32(1e4))
    assert np.exp(logprobs).sum(axis=1) == pytest.approx(1)


def test_kl_divergence_of_two_coins():
    fair, bent = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    assert kl_divergence(fair, bent)[0] == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    assert kl_divergence(fair, fair)[0] == 0


def test_impossible_outcomes_cost_nothing_when_expected_and_everything_when_not():
    sure, fair = np.array([[0.0, -np.inf]]), np.log([[0.5, 0.5]])
    assert kl_divergence(sure, fair)[0] == pytest.approx(math.log(2))
    assert kl_divergence(fair, sure)[0] == math.inf


def test_divergence_of_the_kept_outcomes_is_a_close_lower_bound():
    expected, actual = (
        log_probabilities(logits(8, 200)),
        log_probabilities(logits(8, 200) + logits(8, 200, seed=1) / 10),
    )
    whole = kl_divergence(expected, actual)
    bounds = []
    for kept in (5, 50, 200):
        ids = np.argsort(-expected, axis=1)[:, :kept]
        bounds.append(kl_divergence(keep_some(expected, ids), keep_some(actual, ids)))
    assert (bounds[0] <= bounds[1] + 1e-12).all() and (bounds[1] <= whole + 1e-12).all()
    assert bounds[2] == pytest.approx(whole)


def test_perplexity_of_a_uniform_model_is_its_vocabulary():
    assert perplexity(np.full((5, 7), -math.log(7)), [1, 2, 3, 4, 5]) == pytest.approx(7)


def test_perplexity_scores_each_token_by_the_position_before_it():
    logprobs = np.log(np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]))
    assert perplexity(logprobs, [0, 1, 0]) == pytest.approx(math.exp(-(math.log(0.9) + math.log(0.8)) / 2))
