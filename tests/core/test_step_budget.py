"""What a step may compute, from the tokens it may hold and from the time that those who decode have."""

import pytest

from fakes import LinearStepTimes, make_request
from headway.core.request import Objective, Request
from headway.core.step_budget import StepBudget


def decoding(num_tokens: int = 10, last_token_s: float = 0.0, tpot_s: float = 1.0) -> Request:
    """Has its first token, and computes its next one."""
    request = make_request("decode", num_tokens - 1)
    request.objective = Objective(tpot_s)
    request.output_token_ids = [7]
    request.num_computed_tokens = num_tokens - 1
    request.first_token_s = request.last_token_s = last_token_s
    return request


def budget_beside(requests: list[Request], now: float = 0.0, max_tokens: int = 512, floor: int = 4) -> StepBudget:
    """A token takes 0.01 s, a step 0.1 s more."""
    budget = StepBudget(max_tokens, floor, LinearStepTimes(step_s=0.1, token_s=0.01))
    budget.keep_back(requests, now)
    return budget


def test_prefill_takes_the_time_that_is_left_until_the_first_token_is_due():
    assert budget_beside([decoding()]).tokens_for(make_request("p", 400), 400) == 89  # 0.1 + 90 * 0.01 = 1
    assert budget_beside([decoding()], now=0.5).tokens_for(make_request("p", 400), 400) == 39
    assert budget_beside([decoding(), decoding(tpot_s=0.5)]).tokens_for(make_request("p", 400), 400) == 38
    assert budget_beside([decoding()]).tokens_for(make_request("p", 20), 20) == 20


def test_without_an_objective_or_a_model_prefill_takes_all_tokens_but_those_of_the_decodes():
    assert budget_beside([decoding(tpot_s=float("inf"))]).tokens_for(make_request("p", 600), 600) == 511
    budget = StepBudget(512, 4)
    budget.keep_back([decoding()] * 3, 0.0)
    assert budget.tokens_for(make_request("p", 600), 600) == 509


def test_a_late_step_computes_the_floor_of_one_prompt_and_begins_no_other():
    budget, prompt = budget_beside([decoding()], now=5.0), make_request("p", 400)
    assert budget.tokens_for(prompt, 400) == 4
    assert budget.tokens_for(make_request("p", 2), 2) == 2
    budget.take(prompt, 4, samples=False)
    assert not budget.has_prefill_room
    assert budget.tokens_for(make_request("q", 400), 400) == 0


def test_where_the_decodes_alone_are_too_slow_a_prompt_may_double_the_step():
    budget = budget_beside([decoding(tpot_s=0.05)], now=3.0)  # 0.11 s without the prompt
    assert budget.tokens_for(make_request("p", 400), 400) == 11


def test_several_prompts_share_the_time():
    budget, first = budget_beside([decoding()]), make_request("p", 30)
    budget.take(first, budget.tokens_for(first, 30), samples=True)
    assert budget.has_prefill_room
    assert budget.tokens_for(make_request("q", 400), 400) == 59


def test_tokens_are_kept_back_for_those_who_decode():
    budget, prompt = budget_beside([decoding(tpot_s=float("inf"))] * 2, max_tokens=8), make_request("p", 50)
    assert budget.tokens_for(prompt, 50) == 6
    budget.take(prompt, 6, samples=False)
    assert not budget.has_prefill_room


@pytest.mark.parametrize("gap", [0.2, 0.9])
def test_the_next_token_is_due_a_tpot_after_the_last_and_in_time_for_the_mean(gap):
    request = decoding(last_token_s=10.0)
    request.output_token_ids = [7, 7]  # the second came a gap after the first, the third makes the mean good
    request.last_token_s = 10.0 + gap
    assert request.next_token_due_s == 11.0 + gap
    request.last_token_s = 11.5
    assert request.next_token_due_s == 12.0
