"""The engine's core: the file to read first."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.config import EngineConfig
from headway.core.admission import Admission
from headway.core.admission_control import AdmissionControl
from headway.core.batch import RequestOutput, ScheduledBatch, StepResult
from headway.core.executor import Executor, StepHandle
from headway.core.growth import Reserve
from headway.core.history import History
from headway.core.kv_cache_manager import KVCacheManager
from headway.core.quotas import Quotas
from headway.core.request import FinishReason, Request
from headway.core.request_queue import make_queue
from headway.core.scheduler import Scheduler
from headway.core.step_time import StepShape, StepTimes
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class InFlightStep:
    batch: ScheduledBatch
    handle: StepHandle
    began: float


class EngineCore:
    """Decides; an executor computes. Synchronous, with no clock and no threads: a driver passes the time and waits.

    The life of a request:

        add_request     admitted or refused, with numbers (``admission.py``). Admitted: it waits in the queue.
        begin_step      the scheduler admits it to the running set when blocks for its known tokens are free, and gives
                        it a share of the step; the executor starts to compute. Repeated: prefill in chunks, then a
                        token a step. Short of blocks, the latest-arrived runner is preempted: it waits again, keeps
                        its tokens and recomputes them.
        finish_step     the step's tokens become ``RequestOutput``s; a stop token, max_tokens or an error ends it.
        abort_request   ends it at any moment.

    Every admitted request has exactly one output with a ``finish_reason``, its last. A driver is this loop (live in
    ``engine/engine_loop.py``), with up to ``max_in_flight`` steps begun before the first is finished:

        step = core.begin_step(now)
        outputs = core.finish_step(step, step.handle.result(), now)
    """

    def __init__(
        self, executor: Executor, config: EngineConfig | None = None, step_times: StepTimes | None = None
    ) -> None:
        """With ``step_times``, prefill is cut so that those who decode hold their objective, and the time of a first
        token is predicted; it learns every step. Without, nothing is."""
        config = config or EngineConfig()
        if config.scheduler.max_in_flight < 1:
            raise ConfigError("scheduler.max_in_flight must be at least 1")
        self._executor = executor
        self._max_in_flight = config.scheduler.max_in_flight
        self.step_times = step_times
        info = executor.info
        self.history = History()
        self._kv = KVCacheManager(info.num_blocks, info.block_size, config.prefix_cache, info.num_disk_slots)
        quotas = Quotas(config.tenants)
        weights = {tenant.name: tenant.weight for tenant in config.tenants}
        queue = make_queue(config.scheduler.policy, weights, self._kv.num_cached_tokens, self._kv.is_coming)
        reserve = Reserve(config.memory, info.num_blocks, info.block_size, self.history.lengths)
        self._scheduler = Scheduler(config.scheduler, info, self._kv, queue, reserve, self.history, quotas, step_times)
        self._door = AdmissionControl(info, config, self._kv, self._scheduler, self.history, quotas, step_times)
        self._num_in_flight = 0
        self._num_arrived = 0

    def add_request(self, request: Request, now: float) -> Admission:
        """Sets ``request.max_tokens`` and what is predicted of it. A refused request has left no trace."""
        request.number = self._num_arrived
        self._num_arrived += 1
        admission = self._door.admit(request, now)
        if admission.is_admitted:
            self._scheduler.add(request)
        return admission

    def abort_request(
        self, request_id: str, now: float, reason: FinishReason = FinishReason.ABORT
    ) -> RequestOutput | None:
        """Frees its blocks now and returns its last output; None when it has ended already or was never admitted.

        ``reason`` is STOP when the engine has found a stop string in the text, which the core cannot see.
        """
        return self._scheduler.abort(request_id, now, reason)

    def begin_step(self, now: float) -> InFlightStep | None:
        """Starts the next step; None when nothing can start before a step in flight is finished or a request comes."""
        if self._num_in_flight >= self._max_in_flight:
            return None
        batch = self._scheduler.schedule(now)
        if batch is None:
            return None
        self._num_in_flight += 1
        try:
            return InFlightStep(batch, self._executor.submit(batch), now)
        except Exception as error:
            return InFlightStep(batch, _FailedStep(error), now)

    def finish_step(self, step: InFlightStep, result: StepResult, now: float) -> list[RequestOutput]:
        """Takes a step's result, in the order the steps began."""
        outputs = self._scheduler.update(step.batch, result, now)
        if self.step_times is not None:  # a step that was alone took all the time there was, the scheduler's included
            seconds = now - step.began if self._max_in_flight == 1 else result.seconds
            self.step_times.observe(StepShape.of(step.batch.rows), seconds)
        self._num_in_flight -= 1
        return outputs

    def fail_step(self, step: InFlightStep, error: str, now: float) -> list[RequestOutput]:
        """In place of ``finish_step`` when ``handle.result()`` raised: the step's requests end with ``error``."""
        outputs = self._scheduler.fail(step.batch, error, now)
        self._num_in_flight -= 1
        return outputs

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_available_blocks(self) -> int:
        """Blocks that no request holds. ``num_cached_blocks`` of them may yet be found and used again."""
        return self._kv.num_available_blocks

    @property
    def num_cached_blocks(self) -> int:
        return self._kv.num_cached_blocks

    @property
    def num_evictions(self) -> int:
        """Cached blocks given away so far."""
        return self._kv.num_evictions

    @property
    def disk_transfers(self) -> Mapping[str, int]:
        """Blocks that were to be saved and loaded so far, and how many could not be; empty without the tier."""
        archive = self._kv.archive
        if archive is None:
            return {}
        return {"save": archive.num_saves, "load": archive.num_loads, "failed": archive.num_failures}

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    @property
    def num_steps(self) -> int:
        """Steps begun so far."""
        return self._scheduler.num_steps

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.num_preemptions

    @property
    def num_prompt_tokens(self) -> int:
        """In the prompts of all requests that ever ran; ``num_cached_tokens`` of them were found computed."""
        return self._scheduler.num_prompt_tokens

    @property
    def num_cached_tokens(self) -> int:
        return self._scheduler.num_cached_tokens

    @property
    def services(self) -> Mapping[str, float]:
        """What each tenant has been given lately, in weighted tokens over its weight; empty without fair shares."""
        return self._scheduler.services

    def check_integrity(self) -> None:
        """RuntimeError when blocks or requests do not add up. Changes nothing; cheap enough to call now and then."""
        self._scheduler.check_integrity()


class _FailedStep:
    """The handle of a step that the executor could not even start."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        raise self._error
