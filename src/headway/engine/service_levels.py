"""From the names of a request's tenant and class to what the core is told of it."""

import math
from collections.abc import Sequence

from headway.config import ClassConfig, ObjectiveConfig, TenantConfig
from headway.core.request import Objective, Request, RequestClass
from headway.core.tenants import EVERY_OTHER
from headway.engine.generation import GenerationRequest
from headway.errors import ConfigError, InvalidRequest


class ServiceLevels:
    """The classes, objectives and tenants of the configuration.

    Tenants need no entry: others are like ``*``, or have the standard class. Raises ConfigError where the settings
    contradict each other.
    """

    def __init__(
        self,
        objective: ObjectiveConfig | None = None,
        classes: Sequence[ClassConfig] = (),
        tenants: Sequence[TenantConfig] = (),
    ) -> None:
        _check_names("class", [own.name for own in classes])
        _check_names("tenant", [tenant.name for tenant in tenants])
        base = objective or ObjectiveConfig()
        settings = {own.name: own for own in (*DEFAULT_CLASSES, *classes)}
        self._classes = {name: RequestClass(name, own.priority, own.max_wait_s) for name, own in settings.items()}
        self._objectives = {name: _objective(own, base) for name, own in settings.items()}
        for own in classes:
            _check_deadline(own)
        self._class_of_tenant = {tenant.name: tenant.request_class for tenant in tenants}
        for tenant in tenants:
            self._check(tenant)

    def apply(self, request: Request, asked: GenerationRequest) -> None:
        """Sets what depends on tenant and class; no class: the tenant's own. What was asked of time goes before the
        class's objectives. Tenants share no cached prefix.

        Raises InvalidRequest for a class that is not there, and for a deadline before the objective.
        """
        default = self._class_of_tenant.get(EVERY_OTHER, "standard")
        name = asked.request_class or self._class_of_tenant.get(asked.tenant, default)
        if name not in self._classes:
            message = f"The class {name[:40]!r} is not one of this server's: {', '.join(self._classes)}."
            raise InvalidRequest(message, param="X-Headway-Class")
        request.tenant = request.cache_salt = asked.tenant
        request.request_class = self._classes[name]
        own = self._objectives[name]
        request.objective = Objective(
            tpot_s=own.tpot_s if asked.tpot_ms is None else asked.tpot_ms / 1e3,
            ttft_s=own.ttft_s if asked.ttft_ms is None else asked.ttft_ms / 1e3,
            deadline_s=own.deadline_s if asked.deadline_ms is None else asked.deadline_ms / 1e3,
        )
        if asked.ttft_ms is not None and asked.deadline_ms is not None and asked.deadline_ms < asked.ttft_ms:
            message = f"deadline_ms {asked.deadline_ms:g} is before ttft_ms {asked.ttft_ms:g}: leave one of them out."
            raise InvalidRequest(message, param="deadline_ms")

    def _check(self, tenant: TenantConfig) -> None:
        if tenant.weight <= 0:
            raise ConfigError(f"tenant.weight of {tenant.name!r} must be above 0, not {tenant.weight}")
        if tenant.request_class not in self._classes:
            known = ", ".join(self._classes)
            raise ConfigError(
                f"tenant.class of {tenant.name!r} is {tenant.request_class!r}, but class.name has only {known}"
            )


# As a [[class]] of the same name in the configuration would say it.
DEFAULT_CLASSES = (
    ClassConfig("interactive", priority=0, max_wait_s=5.0),
    ClassConfig("standard"),
    ClassConfig("background", priority=2, max_wait_s=300.0, ttft_ms=0.0, tpot_ms=0.0),
)


def _objective(own: ClassConfig, base: ObjectiveConfig) -> Objective:
    tpot_ms = base.tpot_ms if own.tpot_ms is None else own.tpot_ms
    ttft_ms = base.ttft_ms if own.ttft_ms is None else own.ttft_ms
    return Objective(tpot_ms / 1e3 or math.inf, ttft_ms / 1e3 or math.inf, own.deadline_ms / 1e3 or math.inf)


def _check_deadline(own: ClassConfig) -> None:
    if own.ttft_ms and 0 < own.deadline_ms < own.ttft_ms:
        raise ConfigError(
            f"class.deadline_ms of {own.name!r} is {own.deadline_ms:g}, before its ttft_ms of {own.ttft_ms:g}"
        )


def _check_names(table: str, names: Sequence[str]) -> None:
    for name in names:
        if not name:
            raise ConfigError(f"{table}.name is missing: every [[{table}]] needs one")
        if names.count(name) > 1:
            raise ConfigError(f"{table}.name {name!r} is there twice")
