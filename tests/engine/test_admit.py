import math

import pytest

from headway.core.request import SamplingParams
from headway.engine.admit import admit, new_core_request
from headway.engine.generation import GenerationRequest
from headway.errors import InvalidRequest

VOCAB = 100


def request(prompt=(1, 2, 3), stop=(), **sampling) -> GenerationRequest:
    return GenerationRequest(prompt, SamplingParams(**sampling), stop)


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"max_tokens": 1},
        {"max_tokens": 5, "min_tokens": 5},
        {"temperature": 0},
        {"temperature": 1e-4, "top_p": 1e-4},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 10**12},
        {"min_p": 0},
        {"min_p": 1.0},
        {"presence_penalty": -2, "frequency_penalty": 2.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"temperature": 100},
        {"logit_bias": ((0, -100), (99, 100.0))},
        {"stop_token_ids": (0, 99)},
        {"seed": -1},
        {"seed": 2**64 - 1},
        {"logprobs": 0},
    ],
)
def test_values_within_bounds_pass(sampling):
    admit(request(**sampling), VOCAB)


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("max_tokens", [0, -1, 1.5, True, "5", math.nan]),
        ("min_tokens", [-1, None, 0.5, True]),
        ("temperature", [-0.1, 100.1, 1e300, math.nan, math.inf, "1", None, True]),
        ("top_p", [0, -0.5, 1.01, math.nan, None]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("top_k", [-2, 1.5, None, True]),
        ("presence_penalty", [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.inf]),
        ("repetition_penalty", [0, -1, 1e-300, 1e-45, 0.009, 100.1, 1e300, math.nan, math.inf]),
        ("seed", [1.5, "1", True, 2**64, -(2**63) - 1]),
        ("logprobs", [-1, 1.5, True]),
        ("stop_token_ids", [(100,), (-1,), (1.0,), ("1",), (True,)]),
        ("logit_bias", [((191222, -100.0),), ((-1, 1.0),), (("AI", -100.0),), ((1, math.nan),), ((1, 101.0),)]),
        ("logit_bias", [((1, 1.0), (1, 2.0))]),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(param, values):
    for value in values:
        with pytest.raises(InvalidRequest, match=param) as caught:
            admit(request(**{param: value}), VOCAB)
        assert caught.value.param == param


@pytest.mark.parametrize("prompt", [(), (100,), (-1,), (1, 2.0), ("1",), (True,), (2**70,)])
def test_prompts_must_be_tokens_of_the_model(prompt):
    with pytest.raises(InvalidRequest) as caught:
        admit(request(prompt), VOCAB)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("stop", [("",), ("ok", ""), (5,)])
def test_stop_strings_must_be_text(stop):
    with pytest.raises(InvalidRequest) as caught:
        admit(request(stop=stop), VOCAB)
    assert caught.value.param == "stop"


def test_min_tokens_may_not_exceed_max_tokens():
    with pytest.raises(InvalidRequest, match="min_tokens 6 is above max_tokens 5") as caught:
        admit(request(max_tokens=5, min_tokens=6), VOCAB)
    assert caught.value.param == "min_tokens"


def test_what_exceeds_the_vocabulary_means_all_of_it():
    sampling = admit(request(top_k=1000, logprobs=1000), VOCAB).sampling
    assert (sampling.top_k, sampling.logprobs) == (VOCAB, VOCAB)
    assert admit(request(top_k=-1), VOCAB).sampling.top_k == 0


def test_a_seed_is_kept_or_drawn_afresh():
    assert admit(request(seed=0), VOCAB).sampling.seed == 0
    drawn = {admit(request(), VOCAB).sampling.seed for _ in range(8)}
    assert None not in drawn and len(drawn) == 8


def test_the_id_is_never_the_clients():
    labelled = GenerationRequest((1,), label="mine")
    first, second = (new_core_request(labelled, frozenset({2})) for _ in range(2))
    assert first.request_id != second.request_id != "mine"
    assert first.eos_token_ids == {2}
