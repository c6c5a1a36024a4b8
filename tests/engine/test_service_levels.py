"""Names of tenants and classes, and what they stand for."""

import math

import pytest

from fakes import make_request
from headway.config import ClassConfig, ObjectiveConfig, TenantConfig
from headway.core.request import Objective, Request
from headway.engine.generation import GenerationRequest
from headway.engine.service_levels import ServiceLevels
from headway.errors import ConfigError, InvalidRequest


def applied(levels: ServiceLevels, tenant: str = "", class_name: str = "", **objectives: float) -> Request:
    request = make_request("a")
    levels.apply(request, GenerationRequest((1,), tenant=tenant, request_class=class_name, **objectives))
    return request


def test_a_request_is_standard_unless_it_or_its_tenant_says_otherwise():
    levels = ServiceLevels(tenants=[TenantConfig("shop", 4.0, "interactive")])
    assert applied(levels).request_class.name == "standard"
    assert applied(levels, "shop").request_class.name == "interactive"
    assert applied(levels, "shop", "background").request_class.name == "background"
    assert applied(levels, "stranger").request_class.name == "standard"


def test_classes_have_their_own_objective_or_that_of_all():
    levels = ServiceLevels(
        ObjectiveConfig(tpot_ms=80.0), [ClassConfig("nightly", 3, 60.0), ClassConfig("live", 0, 1, tpot_ms=20.0)]
    )
    assert applied(levels, "", "nightly").objective.tpot_s == 0.08
    assert applied(levels, "", "live").objective.tpot_s == 0.02
    assert applied(levels, "", "background").objective.tpot_s == math.inf
    assert applied(ServiceLevels(ObjectiveConfig(tpot_ms=0.0))).objective.tpot_s == math.inf
    assert applied(levels).objective == Objective(tpot_s=0.08, ttft_s=0.5, deadline_s=math.inf)
    limited = ServiceLevels(classes=[ClassConfig("standard", ttft_ms=100.0, deadline_ms=3000.0)])
    assert applied(limited).objective == Objective(tpot_s=0.05, ttft_s=0.1, deadline_s=3.0)


def test_a_request_may_bring_objectives_of_its_own():
    own = applied(ServiceLevels(), ttft_ms=200.0, deadline_ms=800.0)
    assert own.objective == Objective(tpot_s=0.05, ttft_s=0.2, deadline_s=0.8)


def test_a_deadline_before_the_objective_is_refused_wherever_it_stands():
    with pytest.raises(InvalidRequest, match="deadline_ms 100 is before ttft_ms 200"):
        applied(ServiceLevels(), ttft_ms=200.0, deadline_ms=100.0)
    assert applied(ServiceLevels(), ttft_ms=200.0, deadline_ms=200.0).objective.deadline_s == 0.2
    with pytest.raises(ConfigError, match="of 'live' is 100, before its ttft_ms of 200"):
        ServiceLevels(classes=[ClassConfig("live", ttft_ms=200.0, deadline_ms=100.0)])


def test_a_star_is_the_class_of_tenants_without_an_entry():
    levels = ServiceLevels(tenants=[TenantConfig("*", request_class="background"), TenantConfig("shop")])
    assert applied(levels, "stranger").request_class.name == "background"
    assert applied(levels, "shop").request_class.name == "standard"


def test_a_class_of_the_configuration_replaces_the_one_that_is_there():
    request = applied(ServiceLevels(classes=[ClassConfig("background", 7, 1000.0)]), "", "background")
    assert (request.request_class.priority, request.request_class.max_wait_s) == (7, 1000.0)


def test_tenants_share_no_cached_prefix():
    levels = ServiceLevels()
    assert applied(levels, "a").cache_salt != applied(levels, "b").cache_salt
    assert applied(levels, "a").cache_salt == applied(levels, "a").cache_salt


def test_an_unknown_class_is_refused_with_those_there_are():
    with pytest.raises(InvalidRequest, match="interactive, standard, background"):
        applied(ServiceLevels(), "", "urgent")


@pytest.mark.parametrize(
    ("classes", "tenants", "message"),
    [
        ([], [TenantConfig("a", 1.0, "gold")], r"tenant\.class .*class\.name"),
        ([], [TenantConfig("a", 0.0)], r"tenant\.weight"),
        ([], [TenantConfig("a"), TenantConfig("a")], "twice"),
        ([ClassConfig("x"), ClassConfig("x")], [], "twice"),
        ([ClassConfig()], [], r"class\.name is missing"),
        ([], [TenantConfig()], r"tenant\.name is missing"),
    ],
)
def test_contradictory_settings_are_named(classes, tenants, message):
    with pytest.raises(ConfigError, match=message):
        ServiceLevels(classes=classes, tenants=tenants)
