import pytest

from fakes import make_request
from headway.core.request import Request, RequestClass
from headway.core.request_queue import FairShare, FirstComeFirstServed, RequestQueue


def drain(queue: RequestQueue, now: float = 0.0) -> list[str]:
    order = []
    while (request := queue.peek(now)) is not None:
        queue.remove(request)
        order.append(request.request_id)
    return order


def test_first_come_first_served():
    queue = FirstComeFirstServed()
    for name in "abc":
        queue.add(make_request(name))
    assert len(queue) == 3
    assert drain(queue) == ["a", "b", "c"]
    assert len(queue) == 0


def test_preempted_requests_are_first_and_keep_their_rank():
    queue = FirstComeFirstServed()
    queue.add(make_request("d"))
    for name in "cb":  # the latest-arrived is preempted first
        queue.add_preempted(make_request(name))
    assert drain(queue) == ["b", "c", "d"]


def test_peek_changes_nothing_and_any_request_may_leave():
    queue = FirstComeFirstServed()
    first, second = make_request("a"), make_request("b")
    queue.add(first)
    queue.add(second)
    assert queue.peek(0.0) is queue.peek(1.0) is first
    queue.remove(second)
    assert drain(queue) == ["a"]
    with pytest.raises(KeyError):
        queue.remove(first)


INTERACTIVE = RequestClass("interactive", 0, max_wait_s=5.0)
BACKGROUND = RequestClass("background", 2, max_wait_s=60.0)


def fair_queue(*requests: Request, weights: dict[str, float] | None = None) -> FairShare:
    queue = FairShare(weights)
    for number, request in enumerate(requests):
        request.number = number
        queue.add(request)
    return queue


def of(name: str, tenant: str = "", request_class: RequestClass = RequestClass(), arrival_s: float = 0.0) -> Request:
    request = make_request(name)
    request.tenant, request.request_class, request.arrival_s = tenant, request_class, arrival_s
    return request


def test_one_tenant_of_one_class_is_served_in_order_of_arrival():
    queue = fair_queue(*(of(name) for name in "abc"))
    assert len(queue) == 3
    assert drain(queue) == ["a", "b", "c"]


def test_the_highest_class_goes_first():
    queue = fair_queue(of("a", request_class=BACKGROUND), of("b"), of("c", request_class=INTERACTIVE))
    assert drain(queue) == ["c", "b", "a"]


def test_within_a_class_the_tenant_with_the_least_service_is_next():
    queue = fair_queue(*(of(f"{tenant}{n}", tenant) for tenant in "xy" for n in range(3)), weights={"y": 2.0})
    order = []
    while (request := queue.peek(0.0)) is not None:
        queue.remove(request)
        queue.charge(request.tenant, 10)
        order.append(request.request_id)
    assert order == ["x0", "y0", "y1", "x1", "y2", "x2"]


def test_a_class_that_was_passed_over_too_long_is_next_once():
    requests = [of(f"b{n}", request_class=BACKGROUND) for n in range(2)]
    queue = fair_queue(*requests, *(of(f"i{n}", request_class=INTERACTIVE, arrival_s=59.0) for n in range(3)))
    order = []
    for now in (59.0, 60.0, 61.0, 119.0, 120.0):
        request = queue.peek(now)
        queue.remove(request)
        order.append(request.request_id)
    assert order == ["i0", "b0", "i1", "i2", "b1"]


def test_the_most_overdue_class_goes_first():
    requests = [of("b", request_class=BACKGROUND), of("s", arrival_s=20.0), of("i", request_class=INTERACTIVE)]
    assert drain(fair_queue(*requests), now=4.0) == ["i", "s", "b"]
    assert drain(fair_queue(*requests), now=70.0) == ["i", "s", "b"]  # due at 5, 50 and 60
    requests[2].arrival_s = 66.0
    assert drain(fair_queue(*requests), now=70.0) == ["s", "b", "i"]


def test_preempted_requests_go_before_all_by_class_and_arrival():
    requests = [of("a", request_class=BACKGROUND), of("b"), of("c"), of("d", request_class=INTERACTIVE)]
    queue = fair_queue(*requests)
    for request in requests[:3]:
        queue.remove(request)
    for request in (requests[1], requests[2], requests[0]):
        queue.add_preempted(request)
    assert drain(queue) == ["b", "c", "a", "d"]


def test_a_victim_is_of_the_lowest_class_of_the_tenant_with_most_service_and_the_latest():
    requests = [
        of("a", "x", INTERACTIVE),
        of("b", "x"),
        of("c", "y"),
        of("d", "y"),
        of("e", "x"),
    ]
    queue = fair_queue(*requests)
    for request in requests:
        queue.remove(request)
    queue.charge(requests[2].tenant, 100)
    assert queue.victim(requests).request_id == "d"
    queue.charge(requests[0].tenant, 200)
    assert queue.victim(requests).request_id == "e"
    assert queue.victim(requests[:1]).request_id == "a"


def test_nothing_is_left_of_requests_that_ended_wherever_they_were():
    queue = fair_queue(of("a", "x"), of("b", "x"), of("c", "y"))
    running = queue.peek(0.0)
    queue.remove(running)
    queue.leave(running, was_running=True)
    preempted = queue.peek(0.0)
    queue.remove(preempted)
    queue.add_preempted(preempted)
    assert len(queue) == 2
    queue.leave(preempted, was_running=False)
    queue.leave(queue.peek(0.0), was_running=False)
    assert (len(queue), queue.peek(0.0), len(queue.tenants)) == (0, None, 0)
