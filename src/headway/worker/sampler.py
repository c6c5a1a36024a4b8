"""From logits to tokens: each request's sampling state, and the batch of parameters a backend samples with."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headway.core.batch import NewRequest, SampledToken, TokenLogprobs
from headway.core.request import SamplingParams
from headway.ops.contract import Backend, Float32, Int32, SamplerOutput, SamplingBatch

CANNOT_SAMPLE = (
    "no token could be sampled: the model gave no finite logit among the tokens that may be chosen. "
    "Loosen min_tokens, stop_token_ids or logit_bias; if they are not in use, the model's weights are damaged"
)
_SCALARS = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("repetition_penalty", np.float32),
        ("num_logprobs", np.int32),
        ("seeds", np.uint64),
    ]
)
_NO_IDS = np.zeros(0, np.int32)
Number = TypeVar("Number", np.int32, np.float32)


class SamplingState:
    """What sampling remembers of one request between steps.

    Built from a ``NewRequest`` (whose ``token_ids`` hold output too after a preemption) and changed by ``append``.
    Prompt and output ids, ascending, are kept only where a penalty needs them. Arrays are made once, not once a step.
    """

    def __init__(self, request: NewRequest) -> None:
        params = request.sampling
        if params.seed is None and params.temperature > 0:
            raise ValueError(f"request {request.request_id}: a seed must be chosen before it reaches the sampler")
        prompt, output = request.token_ids[: request.num_prompt_tokens], request.token_ids[request.num_prompt_tokens :]
        self.request_id = request.request_id
        self.num_tokens = len(request.token_ids)
        self.logprobs = params.logprobs
        self.bias_ids = _ids(token_id for token_id, _ in params.logit_bias)
        self.bias_values = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._has_penalty = _has_penalty(params)
        self.prompt_ids = _ids(sorted(set(prompt))) if params.repetition_penalty != 1 else _NO_IDS
        self.output_ids, self.output_counts = _NO_IDS, _NO_IDS
        if self._has_penalty and output:
            ids, counts = np.unique(output, return_counts=True)
            self.output_ids, self.output_counts = ids.astype(np.int32), counts.astype(np.int32)
        self._end_ids = _ids(sorted({*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}))
        self._may_end_at = request.num_prompt_tokens + params.min_tokens
        self.scalars = _scalars(params)

    def append(self, token_id: int) -> None:
        self.num_tokens += 1
        if not self._has_penalty:
            return
        i = int(np.searchsorted(self.output_ids, token_id))
        if i < len(self.output_ids) and self.output_ids[i] == token_id:
            self.output_counts[i] += 1
        else:
            self.output_ids = np.insert(self.output_ids, i, token_id)
            self.output_counts = np.insert(self.output_counts, i, 1)

    @property
    def is_settled(self) -> bool:
        """Whether nothing but the position will differ in the steps to come."""
        return not self._has_penalty and self.num_tokens >= self._may_end_at

    @property
    def banned_ids(self) -> Int32:
        """The tokens that would end the request, until it has ``min_tokens`` of output."""
        return self._end_ids if self.num_tokens < self._may_end_at else _NO_IDS


class Sampler:
    """Samples all rows of a step in one call of the backend.

    ``textless_ids`` are never chosen: rows of the embedding table that stand for no token of the tokenizer.
    """

    def __init__(self, backend: Backend, textless_ids: Iterable[int] = ()) -> None:
        self._backend = backend
        self._textless_ids = _ids(textless_ids)
        self._settled: tuple[list[SamplingState], SamplingBatch] | None = None  # the last batch, if all in it were

    def sample(self, logits: Float32, states: Sequence[SamplingState]) -> list[SampledToken]:
        """One token for each row of ``logits`` [m, vocabulary], and appends it to the row's state.

        A row that cannot be sampled has ``error`` set, its state is left as it was, and the others are not affected.
        """
        output = self._backend.sample(logits, self._batch_again(states) or self.batch(states))
        sampled = [
            _sampled(state, token_id, output, i)
            for i, (state, token_id) in enumerate(zip(states, output.token_ids.tolist(), strict=True))
        ]
        for state, token in zip(states, sampled, strict=True):
            if token.error is None:
                state.append(token.token_id)
        return sampled

    def _batch_again(self, states: Sequence[SamplingState]) -> SamplingBatch | None:
        """The last step's parameters at the next positions, where nothing else has changed: most steps decode for the
        same requests as the one before."""
        if self._settled is None or self._settled[0] != states:
            self._settled = None
            if all(state.is_settled for state in states):
                self._settled = list(states), self.batch(states)
            return self._settled[1] if self._settled else None
        return replace(self._settled[1], positions=_positions(states))

    def batch(self, states: Sequence[SamplingState]) -> SamplingBatch:
        """The next token's parameters of each row. Changes nothing."""
        scalars = np.array([state.scalars for state in states], _SCALARS)
        bias_starts, bias_ids = _ragged([state.bias_ids for state in states])
        banned_starts, banned_ids = _ragged([self._banned(state) for state in states])
        prompt_starts, prompt_ids = _ragged([state.prompt_ids for state in states])
        output_starts, output_ids = _ragged([state.output_ids for state in states])
        return SamplingBatch(
            **{name: np.ascontiguousarray(scalars[name]) for name in _SCALARS.names or ()},
            positions=_positions(states),
            bias_starts=bias_starts,
            bias_ids=bias_ids,
            bias_values=_joined([state.bias_values for state in states], np.float32),
            banned_starts=banned_starts,
            banned_ids=banned_ids,
            prompt_starts=prompt_starts,
            prompt_ids=prompt_ids,
            output_starts=output_starts,
            output_ids=output_ids,
            output_counts=_joined([state.output_counts for state in states], np.int32),
        )

    def _banned(self, state: SamplingState) -> Int32:
        banned = state.banned_ids
        return np.concatenate((self._textless_ids, banned)) if len(banned) else self._textless_ids


def _positions(states: Sequence[SamplingState]) -> Int32:
    return np.array([state.num_tokens for state in states], np.int32)


def _scalars(params: SamplingParams) -> tuple[float, ...]:
    """In the order of ``_SCALARS``."""
    return (
        params.temperature,
        max(params.top_k, 0),
        params.top_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        -1 if params.logprobs is None else params.logprobs,
        (params.seed or 0) % 2**64,
    )


def _has_penalty(params: SamplingParams) -> bool:
    return (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0, 0, 1)


def _ids(values: Iterable[int]) -> Int32:
    return np.fromiter(values, np.int32)


def _ragged(rows: Sequence[Int32]) -> tuple[Int32, Int32]:
    """(starts [m + 1], values): one list after another."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return starts, _joined(rows, np.int32)


def _joined(rows: Sequence[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    """One list after another. Most rows of most steps have none, and an empty array costs as much as a full one."""
    filled = [row for row in rows if len(row)]
    return np.concatenate(filled) if filled else np.zeros(0, dtype)


def _sampled(state: SamplingState, token_id: int, output: SamplerOutput, i: int) -> SampledToken:
    if token_id < 0:
        return SampledToken(state.request_id, token_id, error=CANNOT_SAMPLE)
    if state.logprobs is None:
        return SampledToken(state.request_id, token_id)
    ids, logprobs = output.top_ids[i, : state.logprobs].tolist(), output.top_logprobs[i, : state.logprobs].tolist()
    top = tuple((top_id, logprob) for top_id, logprob in zip(ids, logprobs, strict=True) if top_id >= 0)
    return SampledToken(state.request_id, token_id, TokenLogprobs(float(output.logprobs[i]), top))
