"""The one check of every request, whichever way it comes in: HTTP, batch or Python."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.core.request import Request, SamplingParams
from headway.engine.generation import GenerationRequest
from headway.errors import InvalidRequest

MAX_LOGIT_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_TEMPERATURE = 100.0  # beyond, and for a penalty near 0, single precision has no number left
REPETITION_PENALTY = (0.01, 100.0)
SEED_BITS = 64


def admit(request: GenerationRequest, vocab_size: int) -> GenerationRequest:
    """The request with its defaults settled, or ``InvalidRequest`` naming the field.

    ``vocab_size`` is the width of the logits. Settled: a fresh ``seed`` where none was given; ``top_k`` and
    ``logprobs`` beyond the vocabulary mean all of it; ``top_k`` -1 is 0, off. Whether the tokens fit is the core's to
    decide.
    """
    if len(request.prompt_token_ids) == 0:
        raise InvalidRequest("The prompt has no tokens: send at least one.", param="prompt")
    _check_ids("prompt", request.prompt_token_ids, vocab_size)
    for stop in request.stop:
        if not isinstance(stop, str) or not stop:
            raise InvalidRequest(f"A stop string must be text of at least one character, not {stop!r}.", param="stop")
    for name in ("ttft_ms", "tpot_ms", "deadline_ms"):
        value = getattr(request, name)
        if value is not None:
            _check_number(name, value, low=0.0, open_low=True, hint="leave it out for what the class has")
    sampling = request.sampling
    _check_lengths(sampling)
    _check_distribution(sampling)
    _check_tokens(sampling, vocab_size)
    prompt_token_ids = tuple(request.prompt_token_ids)
    return replace(request, prompt_token_ids=prompt_token_ids, sampling=_settled(sampling, vocab_size))


def new_core_request(request: GenerationRequest, eos_token_ids: frozenset[int]) -> Request:
    """The core's side of an admitted request, under an id of our own."""
    return Request(
        request_id=secrets.token_hex(12),
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        eos_token_ids=eos_token_ids,
    )


def _settled(sampling: SamplingParams, vocab_size: int) -> SamplingParams:
    return replace(
        sampling,
        seed=secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed,
        top_k=min(max(sampling.top_k, 0), vocab_size),
        logprobs=None if sampling.logprobs is None else min(sampling.logprobs, vocab_size),
    )


def _check_lengths(sampling: SamplingParams) -> None:
    if sampling.max_tokens is not None:
        _check_integer("max_tokens", sampling.max_tokens, low=1, hint="leave it out for all the room there is")
    _check_integer("min_tokens", sampling.min_tokens, low=0)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens {sampling.min_tokens} is above max_tokens {sampling.max_tokens}: lower it.", param="min_tokens"
        )


def _check_distribution(sampling: SamplingParams) -> None:
    _check_number("temperature", sampling.temperature, low=0.0, high=MAX_TEMPERATURE)
    _check_number("top_p", sampling.top_p, low=0.0, high=1.0, open_low=True)
    _check_number("min_p", sampling.min_p, low=0.0, high=1.0)
    _check_integer("top_k", sampling.top_k, low=-1, hint="0 and -1 turn it off")
    _check_number("presence_penalty", sampling.presence_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
    _check_number("frequency_penalty", sampling.frequency_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
    low, high = REPETITION_PENALTY
    _check_number("repetition_penalty", sampling.repetition_penalty, low=low, high=high, hint="1 turns it off")
    if sampling.seed is not None:
        _check_integer("seed", sampling.seed, low=-(1 << (SEED_BITS - 1)), high=(1 << SEED_BITS) - 1)


def _check_tokens(sampling: SamplingParams, vocab_size: int) -> None:
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    biased = [token_id for token_id, _ in sampling.logit_bias]
    _check_ids("logit_bias", biased, vocab_size)
    if len(set(biased)) < len(biased):
        raise InvalidRequest("logit_bias names a token twice: give each token one bias.", param="logit_bias")
    for _, bias in sampling.logit_bias:
        _check_number("logit_bias", bias, low=-MAX_LOGIT_BIAS, high=MAX_LOGIT_BIAS)
    if sampling.logprobs is not None:
        _check_integer("logprobs", sampling.logprobs, low=0)


def _check_ids(param: str, token_ids: Sequence[Any], vocab_size: int) -> None:
    """Token ids: whole numbers of the vocabulary. A long prompt is checked at C speed."""
    if not token_ids:
        return
    if not set(map(type, token_ids)) <= {int}:
        wrong = next(value for value in token_ids if type(value) is not int)
        raise InvalidRequest(f"{param} holds {wrong!r}, which is not a whole number.", param=param)
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        wrong = next(value for value in token_ids if not 0 <= value < vocab_size)
        raise InvalidRequest(f"{param} holds {wrong}; token ids of this model are 0 to {vocab_size - 1}.", param=param)


def _check_integer(param: str, value: Any, low: int, high: int | None = None, hint: str = "") -> None:
    if type(value) is not int:
        raise InvalidRequest(f"{param} must be a whole number, not {value!r}.", param=param)
    _check_range(param, value, low, high, False, hint)


def _check_number(
    param: str, value: Any, low: float, high: float | None = None, open_low: bool = False, hint: str = ""
) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InvalidRequest(f"{param} must be a finite number, not {value!r}.", param=param)
    _check_range(param, value, low, high, open_low, hint)


def _check_range(param: str, value: float, low: float, high: float | None, open_low: bool, hint: str) -> None:
    if value < low or (open_low and value == low) or (high is not None and value > high):
        bounds = f"above {low:g}" if open_low else f"at least {low:g}"
        bounds += "" if high is None else f" and at most {high:g}"
        way_out = f" ({hint})" if hint else ""
        raise InvalidRequest(f"{param} is {value}; it must be {bounds}{way_out}.", param=param)
