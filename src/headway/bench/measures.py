"""What is measured of requests and of runs, as functions of recorded times. ``docs/bench.md`` has the definitions.

Times are seconds since the run began. TTFT, TPOT, ITL and attainment are as in DistServe (OSDI 2024).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GOODPUT_ATTAINMENT = 0.90
STRICT_ATTAINMENT = 0.99


@dataclass(frozen=True, slots=True)
class Objectives:
    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it. ``error`` is a short kind ("http 503", "timeout"), None for a whole answer.

    ``event_s`` holds the arrival of each piece of text, ``end_s`` that of the last or of the finish reason, whichever
    came later (last tokens may have no text). Token counts are the server's where it reports them (``is_counted``);
    else the pieces of text were counted, and the prompt was not.
    """

    scheduled_s: float
    num_input_tokens_asked: int
    num_output_tokens_asked: int
    sent_s: float = math.nan
    event_s: list[float] = field(default_factory=list)
    end_s: float = math.nan
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    is_counted: bool = False
    error: str | None = None
    error_detail: str = ""

    @property
    def send_lag_s(self) -> float:
        return self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float:
        return self.event_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return (self.end_s - self.event_s[0]) / (self.num_output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.event_s)]

    def meets(self, objectives: Objectives) -> bool:
        if self.error is not None:
            return False
        return self.ttft_s <= objectives.ttft_s and (self.tpot_s or 0.0) <= objectives.tpot_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some seconds; NaN when there was nothing to measure."""

    p50: float
    p90: float
    p99: float
    max: float


def percentile(values: Sequence[float], q: float) -> float:
    """With linear interpolation between the two nearest of ``values``; ``q`` from 0 to 1. NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values: Sequence[float]) -> Spread:
    return Spread(*(percentile(values, q) for q in (0.5, 0.9, 0.99, 1.0)))


@dataclass(frozen=True, slots=True)
class ClientLag:
    """How late the client itself was.

    ``stalled_share`` is the part of the run lost in waits of its event loop that were too long by over ``limit_s``.
    """

    limit_s: float
    send: Spread
    loop: Spread
    stalled_share: float


MAX_STALLED_SHARE = 0.01


def client_lag(send_s: Sequence[float], loop_s: Sequence[float], duration_s: float, limit_s: float) -> ClientLag:
    stalled_s = sum(lag for lag in loop_s if lag > limit_s)
    return ClientLag(limit_s, spread(send_s), spread(loop_s), stalled_s / duration_s if duration_s > 0 else 0.0)


def void_reasons(lag: ClientLag, num_client_errors: int) -> tuple[str, ...]:
    """Why a run says nothing about the server; empty when it is sound."""
    reasons = []
    limit_ms = f"{lag.limit_s * 1e3:.0f} ms"
    if lag.send.p99 > lag.limit_s:
        reasons.append(f"requests left late: p99 {lag.send.p99 * 1e3:.1f} ms, limit {limit_ms}")
    if lag.stalled_share > MAX_STALLED_SHARE:
        reasons.append(
            f"the client's event loop stood still for {lag.stalled_share:.1%} of the run in waits over {limit_ms}, "
            f"limit {MAX_STALLED_SHARE:.0%}"
        )
    if num_client_errors:
        reasons.append(f"the client could not open {num_client_errors} connections for want of its own resources")
    return tuple(reasons)


CLIENT_ERROR = "client out of sockets"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run at one rate. ``rate`` is what was planned, requests a second; percentiles are of whole answers only.

    ``input_tokens_ratio`` and ``output_tokens_ratio``: counted by the server over asked for; None when it counted none.
    """

    rate: float
    duration_s: float
    num_requests: int
    num_ok: int
    errors: dict[str, int]
    attainment: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    request_rate: float
    output_tokens_per_s: float
    input_tokens_ratio: float | None
    output_tokens_ratio: float | None
    lag: ClientLag
    void: tuple[str, ...]


def summarise(
    rate: float,
    records: Sequence[RequestRecord],
    loop_lag_s: Sequence[float],
    duration_s: float,
    objectives: Objectives,
    max_lag_s: float,
) -> RunSummary:
    """``duration_s`` counts from the first moment of the plan to the last event."""
    ok = [record for record in records if record.error is None]
    errors = Counter(record.error for record in records if record.error is not None)
    lag = client_lag([record.send_lag_s for record in records], loop_lag_s, duration_s, max_lag_s)
    counted = [record for record in ok if record.is_counted]
    return RunSummary(
        rate=rate,
        duration_s=duration_s,
        num_requests=len(records),
        num_ok=len(ok),
        errors=dict(sorted(errors.items())),
        attainment=attainment(records, objectives),
        ttft=spread([record.ttft_s for record in ok]),
        tpot=spread([tpot for record in ok if (tpot := record.tpot_s) is not None]),
        itl=spread([gap for record in ok for gap in record.gaps_s]),
        request_rate=len(ok) / duration_s,
        output_tokens_per_s=sum(record.num_output_tokens for record in ok) / duration_s,
        input_tokens_ratio=_ratio([(r.num_input_tokens, r.num_input_tokens_asked) for r in counted]),
        output_tokens_ratio=_ratio([(r.num_output_tokens, r.num_output_tokens_asked) for r in counted]),
        lag=lag,
        void=void_reasons(lag, errors[CLIENT_ERROR]),
    )


def _ratio(pairs: Sequence[tuple[int, int]]) -> float | None:
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None


def attainment(records: Sequence[RequestRecord], objectives: Objectives) -> float:
    """The share of all requests, failed ones included, that met both objectives."""
    return sum(record.meets(objectives) for record in records) / len(records) if records else math.nan


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests a second; 0 when no rate attained enough. ``is_lower_bound``: the highest rate tried still did."""

    rate: float
    is_lower_bound: bool


def goodput(runs: Sequence[RunSummary], required: float = GOODPUT_ATTAINMENT) -> Goodput | None:
    """The highest rate whose attainment is at least ``required``; None when every run is void."""
    sound = [run for run in runs if not run.void]
    if not sound:
        return None
    best = max((run.rate for run in sound if run.attainment >= required), default=0.0)
    return Goodput(best, is_lower_bound=best == max(run.rate for run in sound))
