import pytest

from fakes import make_info, make_request
from headway.core.admission import Admission, Load, Refusal, RefusalReason
from headway.core.admission import admit as decide
from headway.core.quotas import OverQuota
from headway.core.request import Objective

IDLE = Load(num_free_blocks=64)
INFO = make_info(num_blocks=64, block_size=4, max_context=200)  # pool of 256 tokens


def admit(num_prompt_tokens: int, max_tokens: int | None, info=INFO, load: Load = IDLE) -> Admission:
    request = make_request("a", num_prompt_tokens, max_tokens)
    request.objective = Objective(deadline_s=2.0)
    return decide(request, info, load)


def refusal(num_prompt_tokens: int, max_tokens: int | None, info=INFO, load: Load = IDLE) -> Refusal:
    admission = admit(num_prompt_tokens, max_tokens, info, load)
    assert not admission.is_admitted and admission.refusal is not None
    return admission.refusal


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "resolved"),
    [(1, 1, 1), (100, None, 100), (199, None, 1), (100, 100, 100), (199, 1, 1)],
)
def test_what_fits_enters_with_its_max_tokens_resolved(num_prompt_tokens, max_tokens, resolved):
    admission = admit(num_prompt_tokens, max_tokens, INFO, IDLE)
    assert admission.is_admitted
    assert admission.max_tokens == resolved


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(100, 101), (200, None), (200, 1), (5000, None)])
def test_what_can_never_fit_the_context_is_refused_for_good(num_prompt_tokens, max_tokens):
    refused = refusal(num_prompt_tokens, max_tokens)
    assert refused.reason is RefusalReason.TOO_LONG
    assert (refused.setting, refused.limit) == ("model.max_context", 200)
    assert not refused.is_retryable and refused.retry_after_s is None
    for number in (num_prompt_tokens, 200):
        assert str(number) in refused.message
    assert "shorten" in refused.message


def test_one_block_too_many_for_the_pool_is_refused_at_once():
    info = make_info(num_blocks=64, block_size=4)  # the pool is what limits the context
    assert admit(255, 1, info, IDLE).is_admitted
    refused = refusal(256, 1, info)
    assert (refused.setting, refused.limit) == ("cache.memory_bytes", 256)
    assert (refused.needed_tokens, refused.needed_blocks, refused.free_blocks, refused.total_blocks) == (
        257,
        65,
        64,
        64,
    )
    assert "64 blocks of 4" in refused.message


def test_an_empty_prompt_and_no_output_are_refused():
    assert refusal(0, 5).reason is RefusalReason.EMPTY_PROMPT
    assert refusal(0, None).reason is RefusalReason.EMPTY_PROMPT
    for max_tokens in (0, -1):
        assert refusal(5, max_tokens).reason is RefusalReason.NO_OUTPUT


def test_a_full_queue_is_a_temporary_refusal_with_a_measured_wait():
    load = Load(num_free_blocks=3, num_waiting=7, max_waiting=7, seconds_per_departure=1.5)
    refused = refusal(5, 5, load=load)
    assert refused.reason is RefusalReason.QUEUE_FULL
    assert refused.is_retryable and refused.retry_after_s == 1.5
    assert (refused.limit, refused.free_blocks) == (7, 3)
    assert "7 requests" in refused.message and "in 1.5 s" in refused.message
    assert admit(5, 5, INFO, Load(3, num_waiting=6, max_waiting=7)).is_admitted


def test_a_request_that_never_fits_is_not_told_to_retry_when_the_queue_is_full_too():
    load = Load(num_free_blocks=3, num_waiting=7, max_waiting=7, seconds_per_departure=1.5)
    assert not refusal(500, 5, load=load).is_retryable


@pytest.mark.parametrize(
    ("load", "reason", "setting", "limit", "retry_after_s", "said"),
    [
        (
            Load(3, num_waiting=2, num_waiting_tokens=900, max_waiting_tokens=904, seconds_per_departure=2.0),
            RefusalReason.QUEUE_FULL,
            "server.limits.max_waiting_tokens",
            904,
            2.0,
            "900 tokens of prompts are waiting, this one has 5",
        ),
        (
            Load(3, over_quota=OverQuota("tenant.max_requests", 4, 4, "requests", None), seconds_per_departure=2.0),
            RefusalReason.OVER_QUOTA,
            "tenant.max_requests",
            4,
            2.0,
            "has 4 requests and may have 4",
        ),
        (
            Load(3, over_quota=OverQuota("tenant.max_tokens_per_minute", 60, 58, "tokens in the last minute", 3.0)),
            RefusalReason.OVER_QUOTA,
            "tenant.max_tokens_per_minute",
            60,
            3.0,
            "retry in 3.0 s",
        ),
        (
            Load(3, predicted_ttft_s=4.5, is_late=True),
            RefusalReason.DEADLINE,
            "deadline_ms",
            2000,
            2.5,
            "predicted after 4.50 s and of use for 2.00 s",
        ),
    ],
)
def test_what_is_refused_for_now_says_why_and_when_to_come_back(load, reason, setting, limit, retry_after_s, said):
    refused = refusal(5, 5, load=load)
    assert (refused.reason, refused.setting, refused.limit) == (reason, setting, limit)
    assert refused.is_retryable and refused.retry_after_s == retry_after_s
    assert said in refused.message and setting in refused.message


def test_a_refusal_says_what_the_pool_holds_for_others():
    refused = refusal(5, 5, load=Load(30, 12, 3, num_waiting=7, max_waiting=7, predicted_ttft_s=1.5))
    assert (refused.free_blocks, refused.reserved_blocks, refused.watermark_blocks) == (30, 12, 3)
    assert refused.predicted_ttft_s == 1.5


def test_a_prompt_longer_than_the_queues_tokens_may_wait_alone():
    assert admit(50, 5, load=Load(3, max_waiting_tokens=20)).is_admitted
    assert not admit(50, 5, load=Load(3, num_waiting=1, num_waiting_tokens=1, max_waiting_tokens=20)).is_admitted
