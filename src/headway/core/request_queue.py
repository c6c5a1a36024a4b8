"""Who is next, and who gives way."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from headway.core.request import Request, RequestClass
from headway.core.tenants import Tenants
from headway.errors import ConfigError


class RequestQueue(ABC):
    """The requests that wait, and the policy that orders them. The scheduler admits strictly from the front.

    A request is added, removed when it begins to run, may come back preempted and be removed again, and leaves when it
    ends.
    """

    @abstractmethod
    def add(self, request: Request) -> None:
        """A new request joins."""

    @abstractmethod
    def add_preempted(self, request: Request) -> None:
        """A request that ran comes back. It must keep its rank: ahead of all that arrived after it.

        Of several, the one that must come back first is the last to be preempted.
        """

    @abstractmethod
    def peek(self, now: float) -> Request | None:
        """The request to admit next, left in the queue; None when it is empty."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Takes a request out that begins to run."""

    @abstractmethod
    def leave(self, request: Request, was_running: bool) -> None:
        """A request has ended, wherever it was."""

    @abstractmethod
    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many weighted tokens are computed for it, for the first time."""

    @abstractmethod
    def victim(self, running: Sequence[Request]) -> Request:
        """Who gives way of these (at least one, the first to be admitted first) when memory is short."""

    @property
    def services(self) -> Mapping[str, float]:
        """Weighted tokens given to each tenant, where the policy counts them."""
        return {}

    @abstractmethod
    def __len__(self) -> int: ...


def make_queue(policy: str, weights: Mapping[str, float]) -> "RequestQueue":
    """``weights`` of tenants, for the policy that knows them. ConfigError for a policy that is not there."""
    if policy == "fair":
        return FairShare(weights)
    if policy == "fcfs":
        return FirstComeFirstServed()
    raise ConfigError(f"scheduler.policy is {policy!r}; it can be fair or fcfs")


class FirstComeFirstServed(RequestQueue):
    """Order of arrival. Whoever runs arrived before all who wait, so a preempted request's rank is the front."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        self._waiting[request.request_id] = request

    def add_preempted(self, request: Request) -> None:
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)

    def peek(self, now: float) -> Request | None:
        return next(iter(self._waiting.values()), None)

    def remove(self, request: Request) -> None:
        del self._waiting[request.request_id]

    def leave(self, request: Request, was_running: bool) -> None:
        if not was_running:
            self.remove(request)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Nobody is owed anything."""

    def victim(self, running: Sequence[Request]) -> Request:
        return running[-1]

    def __len__(self) -> int:
        return len(self._waiting)


class FairShare(RequestQueue):
    """Classes by priority, within a class tenants by the service they had, within a tenant by arrival.

        1  who was preempted              by class, then arrival
        2  a class passed over too long   for ``RequestClass.max_wait_s`` although it had requests; the most overdue
        3  the highest class              of it, the tenant with the least service over its weight (``Tenants``)

    So no class waits for ever: whatever comes before it, one of its requests is next at least every ``max_wait_s``, and
    runs as soon as rows and memory for it are free.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """``weights`` of tenants; others have 1."""
        self.tenants = Tenants(weights)
        self._preempted: dict[str, Request] = {}
        self._classes: dict[RequestClass, _ClassQueue] = {}  # that have waiting requests, by priority
        self._num_waiting = 0
        self._now = 0.0  # of the last look

    def add(self, request: Request) -> None:
        self.tenants.enter(request.tenant)
        if request.request_class not in self._classes:
            self._classes[request.request_class] = _ClassQueue(request.arrival_s)
            self._classes = dict(sorted(self._classes.items(), key=lambda item: item[0].priority))
        self._classes[request.request_class].add(request)
        self._num_waiting += 1

    def add_preempted(self, request: Request) -> None:
        self._preempted[request.request_id] = request

    def peek(self, now: float) -> Request | None:
        self._now = now
        if self._preempted:
            return min(self._preempted.values(), key=lambda r: (r.request_class.priority, r.number))
        if not self._classes:
            return None
        return (self._most_overdue(now) or next(iter(self._classes.values()))).next(self.tenants)

    def remove(self, request: Request) -> None:
        if request.request_id not in self._preempted:
            self._classes[request.request_class].served_s = self._now
        self._take_out(request)

    def leave(self, request: Request, was_running: bool) -> None:
        if not was_running:
            self._take_out(request)
        self.tenants.leave(request.tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        self.tenants.charge(tenant, num_tokens)

    def victim(self, running: Sequence[Request]) -> Request:
        """Of the lowest class and its tenant with the most service, the latest: it has the least work to lose, and a
        tenant's oldest request goes on whatever happens."""
        lowest = max(request.request_class.priority for request in running)
        candidates = [request for request in reversed(running) if request.request_class.priority == lowest]
        return max(candidates, key=lambda request: self.tenants.service(request.tenant))

    @property
    def services(self) -> Mapping[str, float]:
        return self.tenants.services

    def __len__(self) -> int:
        return self._num_waiting + len(self._preempted)

    def _take_out(self, request: Request) -> None:
        if self._preempted.pop(request.request_id, None) is not None:
            return
        queue = self._classes[request.request_class]
        queue.remove(request)
        self._num_waiting -= 1
        if queue.is_empty:
            del self._classes[request.request_class]

    def _most_overdue(self, now: float) -> "_ClassQueue | None":
        due_s = {own: queue.served_s + own.max_wait_s for own, queue in self._classes.items()}
        first = min(due_s, key=due_s.__getitem__)
        return self._classes[first] if due_s[first] <= now else None


class _ClassQueue:
    """The waiting requests of one class, by tenant. ``served_s``: when one was last taken, or the first came."""

    def __init__(self, now: float) -> None:
        self.served_s = now
        self._of_tenant: dict[str, OrderedDict[str, Request]] = {}

    def add(self, request: Request) -> None:
        self._of_tenant.setdefault(request.tenant, OrderedDict())[request.request_id] = request

    def remove(self, request: Request) -> None:
        own = self._of_tenant[request.tenant]
        del own[request.request_id]
        if not own:
            del self._of_tenant[request.tenant]

    @property
    def is_empty(self) -> bool:
        return not self._of_tenant

    def next(self, tenants: Tenants) -> Request:
        own = self._of_tenant[tenants.least_served(self._of_tenant)]
        return next(iter(own.values()))
