"""What a tenant may have at a time and in a minute, and what it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.config import TenantConfig
from headway.core.request import Request
from headway.core.tenants import EVERY_OTHER
from headway.errors import ConfigError

MAX_IDLE = 4096  # tenants remembered beyond this only while they have requests


class OverQuota(NamedTuple):
    """A limit that a request would pass. ``retry_after_s`` is None where it depends on when others end."""

    setting: str
    limit: int
    used: int
    unit: str
    retry_after_s: float | None


@dataclass(slots=True)
class Usage:
    """``num_tokens`` are of requests that have not ended; ``minute_tokens`` is what is left of a minute's at ``as_of``:
    it fills up by a 60th of the limit a second, and may fall below 0 by answers nobody could foresee."""

    num_requests: int = 0
    num_tokens: int = 0
    minute_tokens: float = 0.0
    as_of: float = 0.0


class Quotas:
    """The limits of ``[[tenant]]``. Tenants without any are not counted."""

    def __init__(self, tenants: Sequence[TenantConfig] = ()) -> None:
        self._limits = {tenant.name: tenant for tenant in tenants}
        self._usages: dict[str, Usage] = {}
        for tenant in tenants:
            if not 0 < tenant.max_kv_share <= 1:
                raise ConfigError(f"tenant.max_kv_share of {tenant.name!r} must be above 0 and at most 1")

    @property
    def num_tenants(self) -> int:
        """How many are remembered."""
        return len(self._usages)

    def kv_share(self, tenant: str) -> float:
        limits = self._limits_of(tenant)
        return 1.0 if limits is None else limits.max_kv_share

    def objection(self, request: Request, now: float) -> OverQuota | None:
        """The first limit of its tenant that a request would pass, or None. What alone is more than a limit may pass
        where the tenant has nothing else."""
        limits = self._limits_of(request.tenant)
        if limits is None:
            return None
        usage = self._usage(request.tenant, limits, now)
        if limits.max_requests and usage.num_requests >= limits.max_requests:
            return OverQuota("tenant.max_requests", limits.max_requests, usage.num_requests, "requests", None)
        most = limits.max_tokens_in_flight
        if most and usage.num_requests and usage.num_tokens + request.num_expected_tokens > most:
            return OverQuota("tenant.max_tokens_in_flight", most, usage.num_tokens, "tokens in flight", None)
        most = limits.max_tokens_per_minute
        needed = min(request.num_prompt_tokens, most)
        if most and usage.minute_tokens < needed:
            wait_s = (needed - usage.minute_tokens) / (most / 60)
            used = round(most - usage.minute_tokens)
            return OverQuota("tenant.max_tokens_per_minute", most, used, "tokens in the last minute", wait_s)
        return None

    def enter(self, request: Request, now: float) -> None:
        limits = self._limits_of(request.tenant)
        if limits is not None:
            usage = self._usage(request.tenant, limits, now)
            usage.num_requests += 1
            usage.num_tokens += request.num_expected_tokens
            usage.minute_tokens -= request.num_prompt_tokens

    def leave(self, request: Request, now: float) -> None:
        limits = self._limits_of(request.tenant)
        if limits is None:
            return
        usage = self._usage(request.tenant, limits, now)
        usage.num_requests -= 1
        usage.num_tokens -= request.num_expected_tokens
        usage.minute_tokens -= len(request.output_token_ids)
        if not usage.num_requests and (
            usage.minute_tokens >= limits.max_tokens_per_minute or len(self._usages) > MAX_IDLE
        ):
            del self._usages[request.tenant]

    def _limits_of(self, tenant: str) -> TenantConfig | None:
        return self._limits.get(tenant) or self._limits.get(EVERY_OTHER)

    def _usage(self, tenant: str, limits: TenantConfig, now: float) -> Usage:
        most = limits.max_tokens_per_minute
        usage = self._usages.setdefault(tenant, Usage(minute_tokens=most, as_of=now))
        usage.minute_tokens = min(most, usage.minute_tokens + (now - usage.as_of) * most / 60)
        usage.as_of = now
        return usage
