import pytest

from fakes import make_request
from headway.config import TenantConfig
from headway.core.quotas import MAX_IDLE, Quotas
from headway.core.request import Request
from headway.errors import ConfigError


def request_of(tenant: str, num_prompt_tokens: int = 10, num_expected_tokens: int = 30) -> Request:
    request = make_request("a", num_prompt_tokens)
    request.tenant, request.num_expected_tokens = tenant, num_expected_tokens
    return request


def test_a_tenant_without_limits_is_never_objected_to():
    quotas = Quotas([TenantConfig("shop", max_requests=1)])
    for _ in range(5):
        assert quotas.objection(request_of("other"), 0.0) is None
        quotas.enter(request_of("other"), 0.0)


def test_requests_at_a_time():
    quotas = Quotas([TenantConfig("shop", max_requests=2)])
    first = request_of("shop")
    for request in (first, request_of("shop")):
        assert quotas.objection(request, 0.0) is None
        quotas.enter(request, 0.0)
    over = quotas.objection(request_of("shop"), 0.0)
    assert over is not None and (over.setting, over.limit, over.used) == ("tenant.max_requests", 2, 2)
    quotas.leave(first, 1.0)
    assert quotas.objection(request_of("shop"), 1.0) is None


def test_tokens_in_flight_but_one_request_always():
    quotas = Quotas([TenantConfig("shop", max_tokens_in_flight=50)])
    large = request_of("shop", num_expected_tokens=1000)
    assert quotas.objection(large, 0.0) is None
    quotas.enter(large, 0.0)
    over = quotas.objection(request_of("shop"), 0.0)
    assert over is not None and (over.setting, over.used) == ("tenant.max_tokens_in_flight", 1000)
    quotas.leave(large, 0.0)
    assert quotas.objection(request_of("shop"), 0.0) is None


def test_tokens_a_minute_come_back_evenly_and_say_when():
    quotas = Quotas([TenantConfig("shop", max_tokens_per_minute=60)])
    request = request_of("shop", num_prompt_tokens=40)
    quotas.enter(request, 0.0)
    assert quotas.objection(request_of("shop", num_prompt_tokens=20), 0.0) is None
    over = quotas.objection(request_of("shop", num_prompt_tokens=30), 0.0)
    assert over is not None and (over.used, over.retry_after_s) == (40, 10.0)
    assert quotas.objection(request_of("shop", num_prompt_tokens=30), 10.0) is None
    request.output_token_ids = [1] * 50
    quotas.leave(request, 10.0)  # 60 - 40 + 10 - 50: below nothing, as nobody could know
    over = quotas.objection(request_of("shop", num_prompt_tokens=10), 10.0)
    assert over is not None and over.retry_after_s == 30.0


def test_a_prompt_longer_than_a_minute_may_have_a_whole_minute():
    quotas = Quotas([TenantConfig("shop", max_tokens_per_minute=60)])
    assert quotas.objection(request_of("shop", num_prompt_tokens=500), 0.0) is None


def test_a_star_is_every_tenant_without_an_entry_each_for_itself():
    quotas = Quotas([TenantConfig("*", max_requests=1), TenantConfig("shop")])
    for tenant in ("a", "b"):
        assert quotas.objection(request_of(tenant), 0.0) is None
        quotas.enter(request_of(tenant), 0.0)
        assert quotas.objection(request_of(tenant), 0.0) is not None
    quotas.enter(request_of("shop"), 0.0)
    assert quotas.objection(request_of("shop"), 0.0) is None


def test_idle_tenants_are_forgotten_in_the_end():
    quotas = Quotas([TenantConfig("*", max_tokens_per_minute=1000)])
    for number in range(MAX_IDLE + 50):
        request = request_of(f"t{number}")
        quotas.enter(request, 0.0)
        quotas.leave(request, 0.0)
    assert quotas.num_tenants <= MAX_IDLE + 1


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_the_pool_is_above_0_and_at_most_1(share):
    with pytest.raises(ConfigError, match=r"tenant\.max_kv_share of 'shop'"):
        Quotas([TenantConfig("shop", max_kv_share=share)])
