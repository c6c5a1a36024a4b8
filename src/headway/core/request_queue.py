"""Who is next, and who gives way."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice, takewhile

from headway.core.request import Request, RequestClass
from headway.core.tenants import DECODE_WEIGHT, PREFILL_WEIGHT, Tenants
from headway.errors import ConfigError

CountCached = Callable[[Request], int]  # tokens of a request that would be found computed
MustWait = Callable[[Request], bool]  # whether it would compute what another is computing


class RequestQueue(ABC):
    """The requests that wait, and the policy that orders prefill: theirs, and what is left of those that run.

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
    def peek(self, now: float, full: Container[str] = ()) -> Request | None:
        """The request to admit next, left in the queue; None when there is none, but for those of tenants in ``full``,
        which have their share of memory."""

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

    @abstractmethod
    def prefill_order(self, begun: Sequence[Request], now: float) -> list[Request]:
        """Running requests with prefill left, by who gets of this step first."""

    @abstractmethod
    def goes_first(self, newcomer: Request, begun: Request, now: float) -> bool:
        """Whether the next to admit has its prefill before the rest of that of ``begun``."""

    @abstractmethod
    def ahead_of(self, request: Request, now: float) -> Iterator[Request]:
        """Those that would be admitted before this request, which has not joined yet, if no other came."""

    def row_share(self, tenant: str, now: float) -> float:
        """The part of the rows that a tenant may hold when few are left."""
        return 1.0

    def giving_way(self, running: Sequence[Request], prefills: Sequence[Request], rows: int, now: float) -> list[str]:
        """Tenants whose running requests get no token in this step, so that ``prefills`` of others go on sooner."""
        return []

    @property
    def services(self) -> Mapping[str, float]:
        """Weighted tokens given to each tenant, where the policy counts them."""
        return {}

    @abstractmethod
    def __len__(self) -> int: ...


def make_queue(
    policy: str,
    weights: Mapping[str, float],
    num_cached: CountCached = lambda request: 0,
    must_wait: MustWait = lambda request: False,
) -> RequestQueue:
    """``weights`` of tenants and what is cached, for the policy that asks. ConfigError for one that is not there."""
    if policy == "fair":
        return FairShare(weights, num_cached, must_wait)
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

    def peek(self, now: float, full: Container[str] = ()) -> Request | None:
        return next((request for request in self._waiting.values() if request.tenant not in full), None)

    def remove(self, request: Request) -> None:
        del self._waiting[request.request_id]

    def leave(self, request: Request, was_running: bool) -> None:
        if not was_running:
            self.remove(request)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Nobody is owed anything."""

    def victim(self, running: Sequence[Request]) -> Request:
        return running[-1]

    def prefill_order(self, begun: Sequence[Request], now: float) -> list[Request]:
        return list(begun)

    def goes_first(self, newcomer: Request, begun: Request, now: float) -> bool:
        return False

    def ahead_of(self, request: Request, now: float) -> Iterator[Request]:
        return iter(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)


class FairShare(RequestQueue):
    """Classes by priority, within a class tenants by the service they had, within a tenant by urgency.

        1  who was preempted              by class, then arrival
        2  a class passed over too long   for ``RequestClass.max_wait_s`` although it had requests; the most overdue
        3  the highest class              of it, the tenant with the least service over its weight (``Tenants``)

    and of the tenant's requests (``_TenantQueue``) the one that has waited too long, or that must begin first for its
    first token to be in time, or that finds most of its prompt cached while the most urgent can wait for it.

    So no class waits for ever: whatever comes before it, one of its requests is next at least every ``max_wait_s``, and
    runs as soon as rows and memory for it are free. Nor does a request: of its class and tenant, none is before it
    after ``max_wait_s`` but those that arrived earlier.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        num_cached: CountCached = lambda request: 0,
        must_wait: MustWait = lambda request: False,
    ) -> None:
        """``weights`` of tenants; others have 1."""
        self.tenants = Tenants(weights)
        self._num_cached = num_cached
        self._must_wait = must_wait
        self._preempted: dict[str, Request] = {}
        self._classes: dict[RequestClass, _ClassQueue] = {}  # that have waiting requests, by priority
        self._num_waiting = 0
        self._now = 0.0  # of the last look

    def add(self, request: Request) -> None:
        self.tenants.enter(request.tenant, request.arrival_s)
        if request.request_class not in self._classes:
            self._classes[request.request_class] = _ClassQueue(request.arrival_s)
            self._classes = dict(sorted(self._classes.items(), key=lambda item: item[0].priority))
        self._classes[request.request_class].add(request)
        self._num_waiting += 1

    def add_preempted(self, request: Request) -> None:
        self._preempted[request.request_id] = request

    def peek(self, now: float, full: Container[str] = ()) -> Request | None:
        self._now = now
        returning = [request for request in self._preempted.values() if request.tenant not in full]
        if returning:
            return min(returning, key=_rank)
        own_queues = (own for queue in self._in_turn(now) for own in queue.by_service(self.tenants, full))
        found = (own.next(now, self._num_cached, self._must_wait) for own in own_queues)
        return next((request for request in found if request is not None), None)

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

    def prefill_order(self, begun: Sequence[Request], now: float) -> list[Request]:
        def order(request: Request) -> tuple[int, bool, tuple[bool, float, int]]:
            is_overdue = _is_overdue(request, request.began_s, now)
            return request.request_class.priority, not is_overdue, _urgency(request, now)

        return sorted(begun, key=order)

    def goes_first(self, newcomer: Request, begun: Request, now: float) -> bool:
        """Of a higher class, or of the same one, more urgent and of a tenant that has not had more. But no one goes
        before a request that has waited too long, nor before one that was let in again."""
        if begun.num_preemptions or _is_overdue(begun, begun.began_s, now):
            return False
        above = begun.request_class.priority - newcomer.request_class.priority
        if above or newcomer.num_preemptions:
            return above > 0
        has_less = self.tenants.service(newcomer.tenant) <= self.tenants.service(begun.tenant)
        return has_less and _urgency(newcomer, now) < _urgency(begun, now)

    def ahead_of(self, request: Request, now: float) -> Iterator[Request]:
        yield from sorted(self._preempted.values(), key=_rank)
        for own, queue in self._classes.items():
            if own.priority < request.request_class.priority:
                yield from queue.in_turn(self.tenants, now)
        its_own = self._classes.get(request.request_class, _ClassQueue(now))
        yield from takewhile(lambda other: other is not request, its_own.in_turn(self.tenants, now, request))

    def row_share(self, tenant: str, now: float) -> float:
        return self.tenants.share(tenant, now)

    def giving_way(self, running: Sequence[Request], prefills: Sequence[Request], rows: int, now: float) -> list[str]:
        """Those that hold more than their part of the rows and have had no less than one that waits for a first token,
        which can still be in time. What they miss, they get back once that one has had as much."""
        num_running = Counter(request.tenant for request in running)
        greedy = [t for t, count in num_running.items() if count > self.tenants.share(t, now) * rows]
        if not greedy:
            return []
        waiting = (p.tenant for p in prefills if p.first_token_s is None and not _urgency(p, now)[0])
        least = min((self.tenants.service(tenant) for tenant in waiting if tenant not in greedy), default=math.inf)
        return [tenant for tenant in greedy if self.tenants.service(tenant) >= least]

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

    def _in_turn(self, now: float) -> "Iterator[_ClassQueue]":
        """The most overdue class, if one is, then all by priority."""
        if self._classes:
            due_s = {own: queue.served_s + own.max_wait_s for own, queue in self._classes.items()}
            first = min(due_s, key=due_s.__getitem__)
            if due_s[first] <= now:
                yield self._classes[first]
        yield from self._classes.values()


class _ClassQueue:
    """The waiting requests of one class, by tenant. ``served_s``: when one was last taken, or the first came."""

    def __init__(self, now: float) -> None:
        self.served_s = now
        self._of_tenant: dict[str, _TenantQueue] = {}

    def add(self, request: Request) -> None:
        self._of_tenant.setdefault(request.tenant, _TenantQueue()).add(request)

    def remove(self, request: Request) -> None:
        own = self._of_tenant[request.tenant]
        own.remove(request)
        if own.is_empty:
            del self._of_tenant[request.tenant]

    @property
    def is_empty(self) -> bool:
        return not self._of_tenant

    def by_service(self, tenants: Tenants, full: Container[str]) -> "Iterator[_TenantQueue]":
        """Of all tenants but those in ``full``, the least served first."""
        for tenant in sorted(self._of_tenant, key=tenants.service):
            if tenant not in full:
                yield self._of_tenant[tenant]

    def in_turn(self, tenants: Tenants, now: float, joining: Request | None = None) -> Iterator[Request]:
        """All, and ``joining`` as if it had come, in the order of fair shares, taking each answer to be as long as its
        prompt."""
        waiting = {tenant: list(own) for tenant, own in self._of_tenant.items()}
        if joining is not None:
            waiting.setdefault(joining.tenant, []).append(joining)
        for own in waiting.values():
            own.sort(key=lambda r: (not _is_overdue(r, r.arrival_s, now), _urgency(r, now)), reverse=True)
        turns = [(tenants.service_if_active(tenant), number, tenant) for number, tenant in enumerate(waiting)]
        heapify(turns)
        while turns:
            service, number, tenant = turns[0]
            request = waiting[tenant].pop()
            yield request
            if waiting[tenant]:
                size = (PREFILL_WEIGHT + DECODE_WEIGHT) * request.num_prompt_tokens
                heapreplace(turns, (service + size / tenants.weight(tenant), number, tenant))
            else:
                heappop(turns)


class _TenantQueue:
    """The waiting requests of one tenant and class.

    Ordered by when they must begin; those for which it is too late come after the others, by arrival. Whoever has
    waited for ``max_wait_s`` is next in any case, so nobody is put off for ever.
    """

    WINDOW = 8  # of the most urgent, among which one with a longer cached prefix may go first

    def __init__(self) -> None:
        self._by_arrival: OrderedDict[str, Request] = OrderedDict()
        self._by_start: list[tuple[float, int, Request]] = []  # latest start, number

    def add(self, request: Request) -> None:
        self._by_arrival[request.request_id] = request
        insort(self._by_start, (request.latest_start_s, request.number, request))

    def remove(self, request: Request) -> None:
        del self._by_arrival[request.request_id]
        del self._by_start[bisect_left(self._by_start, (request.latest_start_s, request.number))]

    @property
    def is_empty(self) -> bool:
        return not self._by_arrival

    def next(self, now: float, num_cached: CountCached, must_wait: MustWait) -> Request | None:
        """None when all that could be next had better wait for what others are computing."""
        oldest = next(iter(self._by_arrival.values()))
        first = bisect_left(self._by_start, (now,))
        if _is_overdue(oldest, oldest.arrival_s, now):
            return oldest
        window = [entry[2] for entry in self._by_start[first : first + self.WINDOW]]
        window = [request for request in window or islice(self, self.WINDOW) if not must_wait(request)]
        if not window or first == len(self._by_start):
            return window[0] if window else None
        most_cached = max(window, key=num_cached) if len(window) > 1 else window[0]
        return most_cached if now + most_cached.prefill_s <= window[0].latest_start_s else window[0]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_arrival.values())


def _rank(request: Request) -> tuple[int, int]:
    return request.request_class.priority, request.number


def _is_overdue(request: Request, since_s: float, now: float) -> bool:
    return now - since_s >= request.request_class.max_wait_s


def _urgency(request: Request, now: float) -> tuple[bool, float, int]:
    """Smaller is more urgent: who can be in time, by when it must go on; then who is late, by arrival."""
    left = max(0.0, 1 - request.num_computed_tokens / request.num_prompt_tokens)
    must_go_on_s = request.arrival_s + request.objective.ttft_s - left * request.prefill_s
    is_late = must_go_on_s < now
    return is_late, request.arrival_s if is_late else must_go_on_s, request.number
