"""Accounts of service: who is owed, who comes back, who is forgotten."""

import pytest

from headway.core.tenants import Tenants


def test_a_weight_divides_what_is_charged():
    tenants = Tenants({"a": 2.0})
    for tenant in "ab":
        tenants.enter(tenant)
    for tenant in "ab":
        tenants.charge(tenant, 12)
    assert (tenants.service("a"), tenants.service("b")) == (6.0, 12.0)
    assert tenants.least_served("ba") == "a"


def test_who_comes_back_is_lifted_to_the_least_active():
    tenants = Tenants()
    for tenant in "abc":
        tenants.enter(tenant)
    tenants.leave("c", was_running=False)
    for tenant, tokens in (("a", 100), ("b", 60)):
        tenants.charge(tenant, tokens)
    tenants.enter("c")
    assert tenants.service("c") == 60
    tenants.enter("a")  # never left
    assert tenants.service("a") == 100


def test_a_pause_does_not_pay_a_debt():
    tenants = Tenants()
    tenants.enter("a")
    tenants.enter("b")
    tenants.charge("a", 100)
    tenants.leave("a", was_running=False)
    tenants.enter("a")
    assert (tenants.service("a"), tenants.service("b")) == (100, 0)


def test_old_accounts_are_forgotten():
    tenants = Tenants()
    for number in range(1000):
        tenants.enter(f"visitor {number}")
        tenants.charge(f"visitor {number}", 5)
        tenants.leave(f"visitor {number}", was_running=False)
    assert len(tenants) == 0
    tenants.enter("a")
    tenants.charge("a", 10)
    tenants.enter("b")
    tenants.start("b")
    tenants.leave("b", was_running=True)
    assert (len(tenants), tenants.service("b")) == (1, 0)  # b had as little as the least, which is what it would get


@pytest.mark.parametrize("was_running", [False, True])
def test_a_request_that_is_preempted_is_counted_where_it_is(was_running):
    tenants = Tenants()
    tenants.enter("a")
    tenants.start("a")
    tenants.come_back("a")
    if was_running:
        tenants.start("a")
    tenants.leave("a", was_running)
    assert len(tenants) == 0
