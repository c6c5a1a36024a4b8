"""The values that cross the boundary between deciding and computing. All frozen; none refers to a live ``Request``.

Those made for every row of every step are named tuples: a frozen dataclass takes more than twice as long to make.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headway.core.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What an executor must know before a request's first row, or its first row after a preemption.

    ``token_ids`` holds every token known so far (prompt, and output made before a preemption); the executor appends the
    tokens it samples, so later rows carry no ids. Position p of the sequence is ``token_ids[p]``.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: frozenset[int]


class ScheduledRow(NamedTuple):
    """One request's share of a step: compute positions ``start .. start + num_tokens - 1``.

    ``new_block_ids`` are appended to the request's block table before the step. ``samples`` is true when the row
    reaches the last known token, so that the step's logits there give the next one.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: tuple[int, ...]
    samples: bool


class BlockTransfer(NamedTuple):
    """One block of the pool, copied whole to a slot of the tier on disk (a save) or from it (a load)."""

    block_id: int
    slot: int


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step's work, in the order of its rows. Filled by ``Scheduler.schedule``; read by an executor.

    Order of effect: ``released`` requests are forgotten, ``admitted`` ones become known (a preempted request that comes
    back may be in both), ``saves`` are done in their order, then ``loads``, then the rows are computed.
    """

    step_id: int
    released: tuple[str, ...]
    admitted: tuple[NewRequest, ...]
    rows: tuple[ScheduledRow, ...]
    saves: tuple[BlockTransfer, ...] = ()
    loads: tuple[BlockTransfer, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position, from the model's own distribution (before penalties and temperature).

    ``top`` holds (token id, logprob), most likely first. Every value is finite: floored at -9999.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


class SampledToken(NamedTuple):
    """The outcome of one sampling row. ``error`` is set, and ``token_id`` meaningless, when this row alone failed."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an executor returns for one batch: a ``SampledToken`` for each row with ``samples``, and any failed row.

    ``seconds`` is the measured (or, in a simulation, predicted) time the device spent. ``failed_slots`` are those of
    the batch's saves and loads that could not be done; rows are computed all the same, on whatever a block then held.
    """

    step_id: int
    sampled: tuple[SampledToken, ...]
    seconds: float
    failed_slots: tuple[int, ...] = ()


class RequestOutput(NamedTuple):
    """New tokens of one request after one step; ``finish_reason`` is set exactly once, on its last output.

    ``new_token_ids`` includes the end-of-sequence or stop token that ended the request; ``stop_token_id`` then names
    it, so that the engine can leave it out of the text. ``num_cached_tokens`` of the prompt were not computed for it,
    but found in the prefix cache.
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
