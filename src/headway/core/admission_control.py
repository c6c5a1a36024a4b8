"""The one door: every request passes it, and is refused with numbers or enters with what is predicted of it."""

from headway.config import EngineConfig
from headway.core.admission import Admission, Load, admit
from headway.core.executor import ExecutorInfo
from headway.core.forecast import Forecast
from headway.core.history import History
from headway.core.kv_cache_manager import KVCacheManager
from headway.core.quotas import Quotas
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.step_time import StepTimes
from headway.errors import ConfigError

DEADLINE_MODES = ("off", "shadow", "on")


class AdmissionControl:
    """Looks at the queue, the pool and the tenant's quota, and predicts the first token; ``admit`` decides.

    ``objective.deadlines`` says what becomes of a request that is taken for late, which is when it would be even if the
    prediction were too long by the mean error of the last ones: refused (on), only noted (shadow), or not asked (off).
    """

    def __init__(
        self,
        info: ExecutorInfo,
        config: EngineConfig,
        kv: KVCacheManager,
        scheduler: Scheduler,
        history: History,
        quotas: Quotas,
        step_times: StepTimes | None,
    ) -> None:
        if config.deadlines not in DEADLINE_MODES:
            modes = ", ".join(DEADLINE_MODES)
            raise ConfigError(f"objective.deadlines is {config.deadlines!r}; it can be {modes}")
        self._info = info
        self._config = config
        self._kv = kv
        self._scheduler = scheduler
        self._history = history
        self._quotas = quotas
        self._forecast = None
        if step_times is not None:
            self._forecast = Forecast(
                step_times, scheduler.max_tokens, scheduler.max_running, info.block_size, history.lengths
            )

    def admit(self, request: Request, now: float) -> Admission:
        """Sets what is predicted of the request, and ``max_tokens``. Who is admitted counts in its tenant's quota."""
        request.arrival_s = now
        room = request.sampling.max_tokens or self._info.max_context
        expected = self._history.lengths.remaining(request.tenant, 0, room)
        request.num_expected_tokens = request.num_prompt_tokens + expected
        self._predict(request, now)
        admission = admit(request, self._info, self._load(request, now))
        if admission.is_admitted:
            request.max_tokens = admission.max_tokens
            self._quotas.enter(request, now)
        return admission

    def _predict(self, request: Request, now: float) -> None:
        if self._forecast is None or not request.num_prompt_tokens:
            return
        request.prefill_s = self._forecast.prefill_s(request.num_prompt_tokens, self._kv.num_cached_tokens(request))
        request.predicted_ttft_s = self._forecast.first_token_s(
            request, self._scheduler.ahead_of(request, now), self._scheduler.running, self._kv.num_available_blocks
        )
        if self._config.deadlines != "off":
            at_best = request.predicted_ttft_s * (1 - self._history.ttft_error)
            request.is_expected_late = at_best > request.objective.deadline_s

    def _load(self, request: Request, now: float) -> Load:
        scheduler, config = self._scheduler, self._config
        return Load(
            num_free_blocks=self._kv.num_available_blocks,
            num_reserved_blocks=scheduler.reserve.growth(scheduler.running),
            num_watermark_blocks=scheduler.reserve.watermark_blocks,
            num_waiting=scheduler.num_waiting,
            max_waiting=config.max_waiting_requests,
            num_waiting_tokens=scheduler.num_waiting_tokens,
            max_waiting_tokens=config.max_waiting_tokens,
            seconds_per_departure=self._history.seconds_per_departure,
            over_quota=self._quotas.objection(request, now),
            predicted_ttft_s=request.predicted_ttft_s,
            is_late=config.deadlines == "on" and request.is_expected_late,
        )
