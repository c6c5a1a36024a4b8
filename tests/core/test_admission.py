import pytest

from fakes import make_info
from headway.core.admission import DepartureClock, Load, Refusal, RefusalReason, admit

IDLE = Load(num_free_blocks=64, num_waiting=0, max_waiting=None, seconds_per_departure=None)
INFO = make_info(num_blocks=64, block_size=4, max_context=200)  # pool of 256 tokens


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
    assert admit(5, 5, INFO, Load(3, 6, 7, None)).is_admitted


def test_a_request_that_never_fits_is_not_told_to_retry_when_the_queue_is_full_too():
    load = Load(num_free_blocks=3, num_waiting=7, max_waiting=7, seconds_per_departure=1.5)
    assert not refusal(500, 5, load=load).is_retryable


def test_departure_clock_is_the_mean_gap_of_the_last_ends():
    clock = DepartureClock()
    assert clock.seconds_per_departure is None
    clock.record(10.0)
    assert clock.seconds_per_departure is None
    for now in (11.0, 14.0):
        clock.record(now)
    assert clock.seconds_per_departure == 2.0
    for now in range(100, 200):
        clock.record(float(now))
    assert clock.seconds_per_departure == 1.0
