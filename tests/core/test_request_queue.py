import pytest

from fakes import make_request
from headway.core.request_queue import FirstComeFirstServed


def drain(queue: FirstComeFirstServed) -> list[str]:
    order = []
    while (request := queue.peek(0.0)) is not None:
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
