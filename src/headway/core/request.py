"""A request as the core sees it: token ids in, token ids out. Text, templates and stop strings live in ``engine``."""

import math
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    STOP = "stop"  # an end-of-sequence or stop token, or a stop string found by the engine
    LENGTH = "length"  # max_tokens or the context limit
    ABORT = "abort"  # the client left, or the engine was asked to drop it
    ERROR = "error"  # this request failed; others are untouched


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again; its blocks were taken, its tokens are kept
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the answer must be in. ``kind`` is ``json_schema``, ``regex`` or ``lark``, the form of ``source``
    (``lark`` in llguidance's dialect)."""

    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Checked once, in ``engine/admit.py``; the core and the sampler trust it.

    ``temperature`` 0 is argmax, lowest id on a tie. ``top_k`` 0 or -1, ``top_p`` 1, ``min_p`` 0 and the penalties'
    neutral values (0, 0, 1) mean off. ``seed`` None is replaced by a fresh seed before the request reaches the core.
    ``logprobs`` is the number of alternatives reported beside each chosen token (0: only the chosen), None for none.
    ``max_tokens`` None means all the room the context has left.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class RequestClass:
    """How urgent a request is. ``priority`` 0 goes first; a class that has waiting requests is passed over for at most
    ``max_wait_s``."""

    name: str = "standard"
    priority: int = 1
    max_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request asks of time, in seconds; inf: nothing.

    ``tpot_s`` is for each token after the first, in the mean and at most. ``ttft_s`` and ``deadline_s`` are from
    arrival to the first token: what is wished for, and when it is of no use any more.
    """

    tpot_s: float = math.inf
    ttft_s: float = math.inf
    deadline_s: float = math.inf


@dataclass(slots=True, eq=False)
class Request:
    """One sequence of tokens to extend. The core owns and changes every field below the first line.

    A request's wanted tokens are its prompt plus its output; its computed tokens are those whose KV is in the pool (or
    will be when the steps in flight are done). Prefill, decode and recompute are one rule: computed catches up with
    wanted.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    cache_salt: str = ""  # requests share cached prefixes only where this is equal
    objective: Objective = Objective()
    tenant: str = ""
    request_class: RequestClass = RequestClass()
    # -- set at admission --
    arrival_s: float = 0.0
    number: int = 0  # in order of arrival
    max_tokens: int = 0  # ``sampling.max_tokens``, or the room left: prompt + max_tokens fits context and pool
    prefill_s: float = 0.0  # its own prefill's predicted time, with what was cached then
    predicted_ttft_s: float | None = None  # None where no step is predicted
    is_expected_late: bool = False  # for its deadline
    num_expected_tokens: int = 0  # prompt and answer, as its tenant's quota counts them
    # -- changed by the scheduler --
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # confirmed and promised: advanced by schedule(), not by update()
    num_pending_tokens: int = 0  # sampled tokens promised by steps in flight, ids not known yet
    num_preemptions: int = 0
    num_charged_tokens: int = 0  # computed at least once, or found cached
    prefix_keys: list[bytes] = field(default_factory=list)  # of its first full blocks, as many as were asked for
    num_cached_tokens: int = 0  # of the prompt, found computed when it first ran
    began_s: float = 0.0  # when it first ran
    first_token_s: float | None = None  # when it came
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the token that ended it, when one did

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def latest_start_s(self) -> float:
        """When its prefill must begin for the first token to come in time. inf where there is no objective."""
        return self.arrival_s + self.objective.ttft_s - self.prefill_s

    @property
    def next_token_due_s(self) -> float:
        """When the objective wants the next token: soon enough after the last one, and for the mean since the first.
        inf before the first token, and where there is no objective."""
        tpot_s = self.objective.tpot_s
        if self.first_token_s is None or self.last_token_s is None or tpot_s == math.inf:
            return math.inf
        num_after_first = len(self.output_token_ids) + self.num_pending_tokens - 1
        return min(self.last_token_s, self.first_token_s + num_after_first * tpot_s) + tpot_s

    def known_tokens(self, start: int, end: int) -> list[int]:
        """The ids at positions ``start .. end - 1``, which must exist."""
        num_prompt = len(self.prompt_token_ids)
        outputs = self.output_token_ids[max(0, start - num_prompt) : max(0, end - num_prompt)]
        return [*self.prompt_token_ids[start:end], *outputs]

    @property
    def num_tokens(self) -> int:
        """Tokens that exist or are promised: prompt, output, and output still in flight."""
        return len(self.prompt_token_ids) + len(self.output_token_ids) + self.num_pending_tokens
