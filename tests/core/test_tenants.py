"""Accounts of service: who is owed, who comes back, who is forgotten."""

from headway.core.tenants import Tenants


def test_a_weight_divides_what_is_charged():
    tenants = Tenants({"a": 2.0})
    for tenant in "ab":
        tenants.enter(tenant, 0.0)
    for tenant in "ab":
        tenants.charge(tenant, 12)
    assert (tenants.service("a"), tenants.service("b")) == (6.0, 12.0)


def test_who_comes_back_is_lifted_to_the_least_active():
    tenants = Tenants()
    for tenant in "abc":
        tenants.enter(tenant, 0.0)
    tenants.leave("c")
    for tenant, tokens in (("a", 100), ("b", 60)):
        tenants.charge(tenant, tokens)
    tenants.enter("c", 0.0)
    assert tenants.service("c") == 60
    tenants.enter("a", 0.0)  # never left
    assert tenants.service("a") == 100


def test_a_pause_does_not_pay_a_debt():
    tenants = Tenants()
    tenants.enter("a", 0.0)
    tenants.enter("b", 0.0)
    tenants.charge("a", 100)
    tenants.leave("a")
    tenants.enter("a", 0.0)
    assert (tenants.service("a"), tenants.service("b")) == (100, 0)


def test_old_accounts_are_forgotten():
    tenants = Tenants()
    for number in range(1000):
        tenants.enter(f"visitor {number}", 0.0)
        tenants.charge(f"visitor {number}", 5)
        tenants.leave(f"visitor {number}")
    assert len(tenants) == 0
    tenants.enter("a", 0.0)
    tenants.charge("a", 10)
    tenants.enter("b", 0.0)
    tenants.leave("b")
    assert (len(tenants), tenants.service("b")) == (1, 0)  # b had as little as the least, which is what it would get


def test_an_account_is_kept_until_the_last_of_its_requests_has_ended():
    tenants = Tenants()
    for _ in range(2):
        tenants.enter("a", 0.0)
    tenants.leave("a")
    assert len(tenants) == 1
    tenants.leave("a")
    assert len(tenants) == 0
