"""May this request enter, and if not, why: the numbers."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headway.core.executor import ExecutorInfo
from headway.core.quotas import OverQuota
from headway.core.request import Request


class RefusalReason(Enum):
    EMPTY_PROMPT = "empty_prompt"
    NO_OUTPUT = "no_output"  # max_tokens below 1
    TOO_LONG = "too_long"  # more tokens than the context or the KV pool can ever hold
    QUEUE_FULL = "queue_full"
    OVER_QUOTA = "over_quota"  # a limit of its tenant
    DEADLINE = "deadline"  # its first token would come too late to be of use


_RETRYABLE = (RefusalReason.QUEUE_FULL, RefusalReason.OVER_QUOTA, RefusalReason.DEADLINE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not enter. ``setting`` names what decides, ``limit`` is its effect here (tokens, requests, or
    milliseconds).

    ``message`` is one sentence with the numbers and the way out. ``needed_tokens`` is the prompt plus the answer. Of
    the pool's ``total_blocks``, ``free_blocks`` are nobody's, ``reserved_blocks`` of these for what runs to grow into,
    and ``watermark_blocks`` beyond that stay free. Times are measured or predicted; None: nothing to take them from yet
    (or, for ``retry_after_s``, retrying cannot help).
    """

    reason: RefusalReason
    setting: str
    limit: int
    message: str
    needed_tokens: int
    needed_blocks: int
    free_blocks: int
    total_blocks: int
    reserved_blocks: int = 0
    watermark_blocks: int = 0
    predicted_ttft_s: float | None = None
    retry_after_s: float | None = None

    @property
    def is_retryable(self) -> bool:
        """Whether the same request could be admitted later."""
        return self.reason in _RETRYABLE


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
    """What the engine holds when a request arrives. A ``max_*`` of 0 sets no limit; ``over_quota`` is its tenant's
    limit that it would pass, if it would; ``is_late`` whether its deadline is taken for missed."""

    num_free_blocks: int
    num_reserved_blocks: int = 0
    num_watermark_blocks: int = 0
    num_waiting: int = 0
    max_waiting: int = 0
    num_waiting_tokens: int = 0
    max_waiting_tokens: int = 0
    seconds_per_departure: float | None = None
    over_quota: OverQuota | None = None
    predicted_ttft_s: float | None = None
    is_late: bool = False


class Objection(NamedTuple):
    reason: RefusalReason
    setting: str
    limit: int
    message: str
    retry_after_s: float | None = None


def admit(request: Request, info: ExecutorInfo, load: Load) -> Admission:
    """Decides alone whether a request may enter. What enters can finish, if need be as the only one that runs."""
    max_tokens = request.sampling.max_tokens
    room = _capacity_tokens(info) - request.num_prompt_tokens
    resolved = room if max_tokens is None else max_tokens
    objection = _never(request.num_prompt_tokens, max_tokens, info) or _not_now(request, load)
    if objection is None:
        return Admission(resolved)
    needed_tokens = request.num_prompt_tokens + max(1, resolved)
    refusal = Refusal(
        reason=objection.reason,
        setting=objection.setting,
        limit=objection.limit,
        message=objection.message,
        needed_tokens=needed_tokens,
        needed_blocks=-(-needed_tokens // info.block_size),
        free_blocks=load.num_free_blocks,
        total_blocks=info.num_blocks,
        reserved_blocks=load.num_reserved_blocks,
        watermark_blocks=load.num_watermark_blocks,
        predicted_ttft_s=load.predicted_ttft_s,
        retry_after_s=objection.retry_after_s,
    )
    return Admission(resolved, refusal)


def _never(num_prompt_tokens: int, max_tokens: int | None, info: ExecutorInfo) -> Objection | None:
    if num_prompt_tokens == 0:
        return Objection(RefusalReason.EMPTY_PROMPT, "prompt", 1, "The prompt has no tokens: send at least one.")
    if max_tokens is not None and max_tokens < 1:
        message = f"max_tokens is {max_tokens}: ask for at least 1."
        return Objection(RefusalReason.NO_OUTPUT, "max_tokens", 1, message)
    if num_prompt_tokens + (max_tokens or 1) > _capacity_tokens(info):
        return _too_long(num_prompt_tokens, max_tokens, info)
    return None


def _not_now(request: Request, load: Load) -> Objection | None:
    if load.over_quota is not None:
        return _over_quota(load.over_quota, load.seconds_per_departure)
    if load.max_waiting and load.num_waiting >= load.max_waiting:
        held = f"{load.num_waiting} requests are waiting and at most {load.max_waiting} may"
        return _queue_full("server.limits.max_waiting_requests", load.max_waiting, held, load)
    num_tokens = load.num_waiting_tokens + request.num_prompt_tokens
    # A prompt longer than the limit may wait where nothing else does.
    if load.max_waiting_tokens and load.num_waiting and num_tokens > load.max_waiting_tokens:
        held = f"{load.num_waiting_tokens} tokens of prompts are waiting, this one has {request.num_prompt_tokens}, "
        held += f"and at most {load.max_waiting_tokens} may wait"
        return _queue_full("server.limits.max_waiting_tokens", load.max_waiting_tokens, held, load)
    if load.is_late and load.predicted_ttft_s is not None:
        return _late(request.objective.deadline_s, load.predicted_ttft_s)
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
    message = f"{need}, but {holder}: {way_out}, or raise {setting}."
    return Objection(RefusalReason.TOO_LONG, setting, capacity, message)


def _queue_full(setting: str, limit: int, held: str, load: Load) -> Objection:
    message = f"{held} ({setting}): retry {_when(load.seconds_per_departure)}."
    return Objection(RefusalReason.QUEUE_FULL, setting, limit, message, load.seconds_per_departure)


def _over_quota(over: OverQuota, seconds_per_departure: float | None) -> Objection:
    retry_after_s = over.retry_after_s if over.retry_after_s is not None else seconds_per_departure
    message = f"This tenant has {over.used} {over.unit} and may have {over.limit} ({over.setting}): "
    message += f"retry {_when(retry_after_s)}."
    return Objection(RefusalReason.OVER_QUOTA, over.setting, over.limit, message, retry_after_s)


def _late(deadline_s: float, predicted_s: float) -> Objection:
    message = (
        f"The first token is predicted after {predicted_s:.2f} s and of use for {deadline_s:.2f} s (deadline_ms): "
    )
    message += f"retry {_when(predicted_s - deadline_s)}, or allow more."
    return Objection(RefusalReason.DEADLINE, "deadline_ms", round(1e3 * deadline_s), message, predicted_s - deadline_s)


def _when(seconds: float | None) -> str:
    return "shortly" if seconds is None else f"in {seconds:.1f} s"
