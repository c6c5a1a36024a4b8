"""May this request enter, and if not, why: the numbers, and the way out."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from headway.core.executor import ExecutorInfo


class RefusalReason(Enum):
    EMPTY_PROMPT = "empty_prompt"
    NO_OUTPUT = "no_output"  # max_tokens below 1
    TOO_LONG = "too_long"  # more tokens than the context or the KV pool can ever hold
    QUEUE_FULL = "queue_full"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not enter. ``setting`` names what decides, ``limit`` is its effect here (tokens, or requests).

    ``message`` is one sentence with the numbers and the way out. ``needed_tokens`` is the prompt plus the answer.
    """

    reason: RefusalReason
    setting: str
    limit: int
    message: str
    needed_tokens: int
    needed_blocks: int
    free_blocks: int
    total_blocks: int
    retry_after_s: float | None = None  # measured; None when retrying cannot help, or there is nothing to measure yet

    @property
    def is_retryable(self) -> bool:
        """Whether the same request could be admitted later."""
        return self.reason is RefusalReason.QUEUE_FULL


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a request at the door. ``max_tokens`` is resolved: what was asked for, or the room left."""

    max_tokens: int
    refusal: Refusal | None = None

    @property
    def is_admitted(self) -> bool:
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine holds when a request arrives. ``max_waiting`` None sets no limit."""

    num_free_blocks: int
    num_waiting: int
    max_waiting: int | None
    seconds_per_departure: float | None


def admit(num_prompt_tokens: int, max_tokens: int | None, info: ExecutorInfo, load: Load) -> Admission:
    """Decides alone whether a request may enter. What enters can finish, if need be as the only one that runs."""
    room = _capacity_tokens(info) - num_prompt_tokens
    resolved = room if max_tokens is None else max_tokens
    objection = _objection(num_prompt_tokens, max_tokens, info, load)
    if objection is None:
        return Admission(resolved)
    reason, setting, limit, message = objection
    needed_tokens = num_prompt_tokens + max(1, resolved)
    refusal = Refusal(
        reason=reason,
        setting=setting,
        limit=limit,
        message=message,
        needed_tokens=needed_tokens,
        needed_blocks=-(-needed_tokens // info.block_size),
        free_blocks=load.num_free_blocks,
        total_blocks=info.num_blocks,
        retry_after_s=load.seconds_per_departure if reason is RefusalReason.QUEUE_FULL else None,
    )
    return Admission(resolved, refusal)


Objection = tuple[RefusalReason, str, int, str]  # reason, setting, limit, message


def _objection(num_prompt_tokens: int, max_tokens: int | None, info: ExecutorInfo, load: Load) -> Objection | None:
    if num_prompt_tokens == 0:
        return RefusalReason.EMPTY_PROMPT, "prompt", 1, "The prompt has no tokens: send at least one."
    if max_tokens is not None and max_tokens < 1:
        return RefusalReason.NO_OUTPUT, "max_tokens", 1, f"max_tokens is {max_tokens}: ask for at least 1."
    if num_prompt_tokens + (max_tokens or 1) > _capacity_tokens(info):
        return _too_long(num_prompt_tokens, max_tokens, info)
    if load.max_waiting is not None and load.num_waiting >= load.max_waiting:
        return _queue_full(load.num_waiting, load.max_waiting, load.seconds_per_departure)
    return None


def _capacity_tokens(info: ExecutorInfo) -> int:
    return min(info.max_context, info.num_blocks * info.block_size)


def _too_long(num_prompt_tokens: int, max_tokens: int | None, info: ExecutorInfo) -> Objection:
    capacity = _capacity_tokens(info)
    if info.max_context < info.num_blocks * info.block_size:
        setting, holder = "model.max_context", f"the context holds {capacity} tokens"
    else:
        setting = "cache.memory_bytes"
        holder = f"the KV pool holds {capacity} tokens ({info.num_blocks} blocks of {info.block_size})"
    if num_prompt_tokens >= capacity:
        need = f"The prompt has {num_prompt_tokens} tokens"
        way_out = f"shorten it to at most {capacity - 1}"
    else:
        needed_tokens = num_prompt_tokens + (max_tokens or 1)
        need = f"The prompt's {num_prompt_tokens} tokens and max_tokens {max_tokens} make {needed_tokens}"
        way_out = f"ask for at most {capacity - num_prompt_tokens} tokens, shorten the prompt"
    return RefusalReason.TOO_LONG, setting, capacity, f"{need}, but {holder}: {way_out}, or raise {setting}."


def _queue_full(num_waiting: int, max_waiting: int, seconds_per_departure: float | None) -> Objection:
    setting = "server.limits.max_waiting_requests"
    when = "shortly" if seconds_per_departure is None else f"in {seconds_per_departure:.1f} s"
    message = f"{num_waiting} requests are waiting and at most {max_waiting} may ({setting}): retry {when}."
    return RefusalReason.QUEUE_FULL, setting, max_waiting, message


class DepartureClock:
    """Measures how often a request ends, from the times of the last few ends."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=32)

    def record(self, now: float) -> None:
        self._ends.append(now)

    @property
    def seconds_per_departure(self) -> float | None:
        """Mean time between ends; None before the second one."""
        if len(self._ends) < 2:
            return None
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
