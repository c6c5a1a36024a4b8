import random

import pytest

from fakes import make_request
from headway.core.request import Objective, Request, RequestClass
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


def timed(name: str, prefill_s: float, ttft_s: float = 10.0, arrival_s: float = 0.0, tenant: str = "") -> Request:
    request = of(name, tenant, RequestClass("standard", 1, max_wait_s=30.0), arrival_s)
    request.prefill_s, request.objective = prefill_s, Objective(ttft_s=ttft_s)
    return request


def test_of_a_tenant_whoever_must_begin_first_for_its_first_token_to_be_in_time_is_next():
    queue = fair_queue(timed("short", 1.0), timed("long", 8.0), timed("soon", 1.0, ttft_s=2.0), timed("never", 9, 1e9))
    assert drain(queue) == ["soon", "long", "short", "never"]


def test_those_for_whom_it_is_too_late_come_last_by_arrival_until_they_have_waited_too_long():
    late, later, in_time = timed("late", 1.0), timed("later", 5.0, arrival_s=1.0), timed("new", 1.0, arrival_s=14.0)
    assert drain(fair_queue(late, later, in_time), now=15.0) == ["new", "late", "later"]
    assert drain(fair_queue(late, later, timed("new", 1.0, arrival_s=25.0)), now=30.5) == ["late", "new", "later"]


def test_the_longest_cached_prefix_goes_first_as_long_as_the_most_urgent_can_wait_for_it():
    def queue() -> FairShare:
        cached = {"b": 32, "c": 64}
        queue = FairShare(num_cached=lambda request: cached.get(request.request_id, 0))
        for number, request in enumerate((timed("a", 2.2), timed("b", 2.1), timed("c", 2.0))):
            request.number = number
            queue.add(request)
        return queue

    assert drain(queue(), now=0.0) == ["c", "b", "a"]
    assert drain(queue(), now=7.0) == ["a", "b", "c"], "a must begin by 7.8"


def test_tenants_that_have_their_share_of_the_pool_are_passed_over():
    queue = fair_queue(of("a", "one"), of("b", "two"), of("c", "three", BACKGROUND))
    for full, name in (((), "a"), (("one",), "b"), (("one", "two"), "c")):
        found = queue.peek(0.0, full)
        assert found is not None and found.request_id == name
    assert queue.peek(0.0, ("one", "two", "three")) is None


def test_what_is_left_of_prefills_is_ordered_by_class_and_by_when_it_must_go_on():
    queue = fair_queue()
    half_done, whole = timed("half", 8.0), timed("whole", 6.0)
    half_done.num_computed_tokens = 3  # of 5: it can wait longer
    first = of("first", "", INTERACTIVE)
    assert queue.prefill_order([half_done, whole, first], 0.0) == [first, whole, half_done]


def test_a_newcomer_goes_before_a_begun_prefill_if_it_is_more_urgent_and_its_tenant_has_not_had_more():
    begun, newcomer = timed("long", 8.0, tenant="a"), timed("short", 1.0, ttft_s=2.5, tenant="b")
    queue = fair_queue(begun, newcomer)
    assert queue.goes_first(newcomer, begun, 0.0)
    assert not queue.goes_first(timed("idle", 1.0, ttft_s=60.0, tenant="b"), begun, 0.0)
    assert queue.goes_first(of("high", "b", INTERACTIVE), begun, 0.0)
    assert not queue.goes_first(of("low", "b", BACKGROUND), begun, 0.0)
    queue.charge("b", 100)
    assert not queue.goes_first(newcomer, begun, 0.0), "b has had more"


def test_nobody_goes_before_a_prefill_that_has_waited_too_long_or_was_let_in_again():
    begun, newcomer = timed("long", 8.0), of("high", "", INTERACTIVE)
    queue = fair_queue(begun, newcomer)
    assert not queue.goes_first(newcomer, begun, 30.0)
    begun.num_preemptions = 1
    assert not queue.goes_first(newcomer, begun, 0.0)


def order_of(queue: RequestQueue, request: Request, now: float = 0.0) -> list[str]:
    return [other.request_id for other in queue.ahead_of(request, now)]


def test_those_ahead_of_a_request_are_those_that_would_be_taken_before_it():
    """Played out: the queue is drained with the newcomer in it, every request charged as the forecast takes it."""
    rng = random.Random(5)
    for seed in range(200):
        requests = [timed(f"r{i}", rng.random(), rng.choice([1.0, 5.0]), tenant=rng.choice("abc")) for i in range(12)]
        newcomer = requests.pop()
        newcomer.number = len(requests)
        queue = fair_queue(*requests, weights={"a": 2.0})
        predicted = order_of(queue, newcomer, 1.0)
        queue.add(newcomer)
        played = []
        while (request := queue.peek(1.0)) is not newcomer:
            queue.remove(request)
            queue.charge(request.tenant, 3 * request.num_prompt_tokens)
            played.append(request.request_id)
        assert predicted == played, f"seed {seed}"


def test_all_of_a_higher_class_and_all_that_were_preempted_are_ahead():
    queue = fair_queue(of("low", "", BACKGROUND), of("high", "other", INTERACTIVE))
    queue.add_preempted(of("back"))
    assert order_of(queue, of("new")) == ["back", "high"]


def test_first_come_first_served_puts_everyone_ahead():
    queue = FirstComeFirstServed()
    for name in "ab":
        queue.add(make_request(name))
    assert order_of(queue, make_request("c")) == ["a", "b"]


def running_of(tenant: str, count: int) -> list[Request]:
    return [timed(f"{tenant}{number}", 1.0, tenant=tenant) for number in range(count)]


def test_a_tenant_with_more_than_its_part_of_the_rows_gives_way_to_first_tokens_of_who_has_had_less():
    flood, other = running_of("flood", 6), timed("new", 1.0, tenant="other")
    queue = fair_queue(*flood, other)
    queue.charge("flood", 10)
    assert queue.giving_way(flood, [other], rows=8, now=0.0) == ["flood"]
    assert queue.giving_way(flood[:4], [other], rows=8, now=0.0) == [], "half of the rows is its part"
    assert queue.giving_way(flood, [other], rows=8, now=9.5) == [], "it is too late for the other's"
    assert queue.giving_way(flood, [timed("own", 1.0, tenant="flood")], rows=8, now=0.0) == []
    queue.charge("other", 20)
    assert queue.giving_way(flood, [other], rows=8, now=0.0) == [], "the other has had more by now"


def test_a_tenant_alone_may_have_all_rows():
    alone = running_of("a", 8)
    queue = fair_queue(*alone)
    queue.charge("a", 10)
    assert queue.row_share("a", 0.0) == 1.0
    assert queue.giving_way(alone, [timed("more", 1.0, tenant="a")], rows=8, now=0.0) == []


def test_a_tenants_part_of_the_rows_goes_by_weight_among_those_that_sent_something_lately():
    queue = fair_queue(of("a", "a"), of("b", "b", arrival_s=30.0), weights={"a": 3.0})
    assert queue.row_share("a", 30.0) == 0.75
    assert queue.row_share("b", 80.0) == 1.0, "a has been away for over a minute"
