"""Who has had how much: service by tenant, in tokens, over weights."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

LATELY_S = 60.0
EVERY_OTHER = "*"  # in place of a name: every tenant without an entry of its own
PREFILL_WEIGHT, DECODE_WEIGHT = 1, 2  # of a computed token: a decode reads all weights for one


@dataclass(slots=True)
class Account:
    """What a tenant has been given, in weighted tokens over its weight."""

    weight: float
    service: float = 0.0
    num_unfinished: int = 0  # of its requests, waiting and running

    @property
    def is_active(self) -> bool:
        return self.num_unfinished > 0


class Tenants:
    """The accounts of a virtual token counter (Sheng et al., Fairness in Serving Large Language Models, 2024).

    Whoever has waiting requests and the least service is next. A tenant that comes back after a pause is lifted to the
    least of the active ones: it gets its share from now on, not what it did not ask for meanwhile.

    The bound: for tenants of one class that always have requests waiting, services never differ by more than
    ``rows * (prompt + 2 * output of the largest request) / weight`` of the one that has more. When that one's latest
    request began, it had the least; since then it can only have been given the rest of what it had begun, at most one
    request a row.

    Accounts of tenants that are not active and have no more service than the least active one say nothing: they are
    forgotten, so that there are never many more than there are active tenants.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Tenants without a weight have that of ``*``, or 1."""
        self._weights = weights or {}
        self._accounts: dict[str, Account] = {}
        self._seen_s: OrderedDict[str, float] = OrderedDict()  # when each last sent something, the longest ago first

    def __len__(self) -> int:
        """How many accounts there are."""
        return len(self._accounts)

    @property
    def services(self) -> dict[str, float]:
        return {tenant: account.service for tenant, account in self._accounts.items()}

    def service(self, tenant: str) -> float:
        found = self._accounts.get(tenant)
        return 0.0 if found is None else found.service

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, self._weights.get(EVERY_OTHER, 1.0))

    def service_if_active(self, tenant: str) -> float:
        """What it has, or would have once a request of it has come."""
        account = self._accounts.get(tenant)
        if account is not None and account.is_active:
            return account.service
        return max(0.0 if account is None else account.service, self._least_active())

    def share(self, tenant: str, now: float) -> float:
        """Its weight, of those of all tenants that sent something lately."""
        while self._seen_s and now - next(iter(self._seen_s.values())) > LATELY_S:
            self._seen_s.popitem(last=False)
        weight = self.weight(tenant)
        others = sum(self.weight(other) for other in self._seen_s if other != tenant)
        return weight / (weight + others)

    def enter(self, tenant: str, now: float) -> None:
        """A request of the tenant has come."""
        self._seen_s[tenant] = now
        self._seen_s.move_to_end(tenant)
        service = self.service_if_active(tenant)
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(self.weight(tenant))
        account.service = service
        account.num_unfinished += 1

    def leave(self, tenant: str) -> None:
        """A request of the tenant has ended."""
        account = self._accounts[tenant]
        account.num_unfinished -= 1
        if not account.is_active:
            self._forget_old()

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Weighted tokens computed for the tenant. What is found cached is free, and what is computed again after a
        preemption has been paid."""
        account = self._accounts[tenant]
        account.service += num_tokens / account.weight

    def _least_active(self) -> float:
        return min((account.service for account in self._accounts.values() if account.is_active), default=0.0)

    def _forget_old(self) -> None:
        active = [account.service for account in self._accounts.values() if account.is_active]
        for tenant, account in list(self._accounts.items()):
            if not account.is_active and account.service <= min(active, default=math.inf):
                del self._accounts[tenant]
