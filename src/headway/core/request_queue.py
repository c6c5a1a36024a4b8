"""Who is next."""

from abc import ABC, abstractmethod
from collections import OrderedDict

from headway.core.request import Request


class RequestQueue(ABC):
    """The requests that wait, and the policy that orders them. The scheduler admits strictly from the front."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """A new request joins."""

    @abstractmethod
    def add_preempted(self, request: Request) -> None:
        """A request that ran comes back. It must keep its rank: ahead of all that arrived after it.

        The latest-arrived is preempted first, so of several it is the first to come back here.
        """

    @abstractmethod
    def peek(self, now: float) -> Request | None:
        """The request to admit next, left in the queue; None when it is empty."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Takes a request out: it was admitted, or it ended while it waited."""

    @abstractmethod
    def __len__(self) -> int: ...


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

    def __len__(self) -> int:
        return len(self._waiting)
