"""Which request computes how many tokens in the next step, and what a step's result means for each."""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.config import SchedulerConfig
from headway.core.batch import (
    NewRequest,
    RequestOutput,
    SampledToken,
    ScheduledBatch,
    ScheduledRow,
    StepResult,
    TokenLogprobs,
)
from headway.core.executor import ExecutorInfo
from headway.core.growth import Reserve
from headway.core.history import History
from headway.core.kv_cache_manager import BlockTable, KVCacheManager
from headway.core.quotas import Quotas
from headway.core.request import FinishReason, Request, RequestStatus
from headway.core.request_queue import RequestQueue
from headway.core.step_budget import StepBudget
from headway.core.step_time import StepTimes
from headway.core.tenants import DECODE_WEIGHT, PREFILL_WEIGHT
from headway.errors import ConfigError

ROWS_KEPT = 8  # one of so many rows is not for tenants that have more than their part


class Scheduler:
    """Owns every unfinished request: the queue of those that wait, and the list of those that run.

    There is no prefill phase and no decode phase. Each request has tokens it wants computed (prompt, output, and output
    promised by steps in flight) and tokens that are computed; each step brings the second closer to the first, within
    the step's budget. A prefill chunk, a decode and a recompute after preemption are all "n tokens of this request".

        wanted      prompt  p p p p p p   output  o o o   pending  *
        computed            # # # #                                    prefill: wants the rest
                            # # # # # #           # # #                decode: wants the last token, here in flight

    Several steps may be in flight. ``schedule`` promises: it advances ``num_computed_tokens`` and
    ``num_pending_tokens``. ``update`` confirms, in the order of submission. Since steps also run in that order, the
    blocks of a request that ended or was preempted may go to a later step while an earlier one still writes them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        info: ExecutorInfo,
        kv: KVCacheManager,
        queue: RequestQueue,
        reserve: Reserve,
        history: History,
        quotas: Quotas,
        step_times: StepTimes | None = None,
    ) -> None:
        self.max_tokens = min(config.max_batch_tokens, info.max_batch_tokens)
        # A running request must be able to get a token in every step, however many older ones there are.
        self.max_running = min(config.max_batch_rows, info.max_batch_rows, self.max_tokens)
        if self.max_running < 1:
            raise ConfigError("scheduler.max_batch_tokens and scheduler.max_batch_rows must be at least 1")
        self._min_prefill_tokens = config.min_prefill_tokens
        self._kv = kv
        self._block_size = info.block_size
        self._queue = queue
        self.reserve = reserve
        self._history = history
        self._quotas = quotas
        self._step_times = step_times
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []  # by class, in each in order of admission
        self._released: list[str] = []  # to be forgotten by the executor with the next batch
        self._num_steps = 0
        self._num_updates = 0
        self._in_flight: deque[list[BlockTable]] = deque()  # of each step, the tables its rows write
        self.num_preemptions = 0
        self.num_waiting_tokens = 0  # in the prompts of waiting requests
        self.num_prompt_tokens = 0  # of all that ever ran
        self.num_cached_tokens = 0  # of these, found computed

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_steps(self) -> int:
        """Batches scheduled so far."""
        return self._num_steps

    @property
    def services(self) -> Mapping[str, float]:
        return self._queue.services

    def ahead_of(self, request: Request, now: float) -> Iterator[Request]:
        """Waiting requests that would run before this one if it joined now."""
        return self._queue.ahead_of(request, now)

    def add(self, request: Request) -> None:
        """Takes over an admitted request. Its id must never have been used before: late results are matched by id."""
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        self._requests[request.request_id] = request
        self._queue.add(request)
        self.num_waiting_tokens += request.num_prompt_tokens

    def schedule(self, now: float) -> ScheduledBatch | None:
        """The next step, or None when nothing can be computed before a step in flight returns (or a request comes)."""
        step = _StepPlan(StepBudget(self.max_tokens, self._min_prefill_tokens, self._step_times))
        num_preemptions = self.num_preemptions
        begun = self._schedule_decodes(step, now)
        # Where memory was short for those that run, nobody else begins.
        self._schedule_prefills(step, begun, now, can_admit=self.num_preemptions == num_preemptions)
        if not step.rows and step.gives_way:
            self._schedule_decodes(step, now, may_give_way=False)  # for nobody, as it turned out
        if not step.rows:
            return None
        released, admitted, rows = tuple(self._released), tuple(step.admitted), tuple(step.rows)
        batch = ScheduledBatch(self._num_steps, released, admitted, rows, *self._kv.take_transfers())
        self._num_steps += 1
        self._in_flight.append(step.tables)
        self._released.clear()
        return batch

    def update(self, batch: ScheduledBatch, result: StepResult, now: float) -> list[RequestOutput]:
        """Confirms the oldest step in flight. Tokens of requests that have ended meanwhile are dropped, and those that
        were computed on a block that could not be loaded."""
        tables = self._confirm(batch)
        if result.failed_slots:
            self._take_back_damaged(batch, tables, result.failed_slots)
        sampled = {token.request_id: token for token in result.sampled}
        outputs = []
        for row, table in zip(batch.rows, tables, strict=True):
            request = self._requests.get(row.request_id)
            token = sampled.get(row.request_id)
            if request is None:
                continue
            if table.is_damaged:
                request.num_pending_tokens -= row.samples
                continue
            end = row.start + row.num_tokens
            may_name = row.new_block_ids or end % self._block_size < row.num_tokens  # was given blocks, or fills one
            if may_name and (token is None or token.error is None):
                self._kv.confirm(request, table, end)
            if token is None and not row.samples:
                continue
            if token is None:
                outputs.append(self._finish(request, FinishReason.ERROR, now, error="the executor returned no token"))
            elif token.error is not None:
                outputs.append(self._finish(request, FinishReason.ERROR, now, error=token.error))
            elif row.samples:
                outputs.append(self._accept(request, token, now))
        return outputs

    def fail(self, batch: ScheduledBatch, error: str, now: float) -> list[RequestOutput]:
        """The oldest step in flight failed as a whole: the requests it computed end, the others go on."""
        self._confirm(batch)
        requests = [self._requests.get(row.request_id) for row in batch.rows]
        return [
            self._finish(request, FinishReason.ERROR, now, error=error) for request in requests if request is not None
        ]

    def abort(self, request_id: str, now: float, reason: FinishReason) -> RequestOutput | None:
        """Ends a request and returns its last output; None when the id is unknown or has ended."""
        request = self._requests.get(request_id)
        return None if request is None else self._finish(request, reason, now)

    def check_integrity(self) -> None:
        """RuntimeError unless blocks and requests add up."""
        self._kv.check_integrity()
        if len(self._requests) != self.num_running + self.num_waiting:
            raise RuntimeError(
                f"{len(self._requests)} requests, {self.num_running} running, {self.num_waiting} waiting"
            )
        if not self._running and self._kv.num_used_blocks:
            raise RuntimeError(f"nothing runs, but {self._kv.num_used_blocks} blocks are taken")

    def _schedule_decodes(self, step: "_StepPlan", now: float, may_give_way: bool = True) -> list[Request]:
        """A token for each running request that wants just one, by class, in each the first to be admitted first.
        Victims of preemption drop out on the way. Returns those that want more, which is prefill."""
        wanted = [_num_wanted_tokens(request) for request in self._running]
        begun = [request for request, count in zip(self._running, wanted, strict=True) if count > 1]
        if begun or (len(self._queue) and len(wanted) < self.max_running):
            wanted = self._without_those_giving_way(step, wanted, begun, now) if may_give_way else wanted
            step.budget.keep_back((self._running[i] for i, count in enumerate(wanted) if count == 1), now)
        charges: dict[str, int] = {}
        for request, count in zip(tuple(self._running), wanted, strict=True):
            if count != 1 or request.status is not RequestStatus.RUNNING:
                continue
            new_block_ids = self._allocate_or_preempt(request)
            if new_block_ids is None:
                continue
            charge = self._add_row(step, request, 1, True, new_block_ids)
            charges[request.tenant] = charges.get(request.tenant, 0) + charge
        for tenant, charge in charges.items():
            self._queue.charge(tenant, charge)
        return [request for request in begun if request.status is RequestStatus.RUNNING]

    def _without_those_giving_way(
        self, step: "_StepPlan", wanted: list[int], begun: Sequence[Request], now: float
    ) -> list[int]:
        """What each running request gets: no token for those that give way to others' first tokens in this step."""
        newcomer = self._newcomer(step, now)
        prefills = list(begun)
        if newcomer is not None and self._kv.can_begin(newcomer, self.reserve.headroom(self._running, newcomer)):
            prefills.append(newcomer)
        tenants = self._queue.giving_way(self._running, prefills, self.max_running, now) if prefills else []
        if not tenants:
            return wanted
        step.gives_way = True
        return [
            0 if count == 1 and request.tenant in tenants else count
            for request, count in zip(self._running, wanted, strict=True)
        ]

    def _allocate_or_preempt(self, request: Request) -> tuple[int, ...] | None:
        """Room for one more token, from others if need be; None when one of these was ``request``.

        Victims are the request itself or come after it in the list, where no request has a row in this step yet. All
        others go on with what a victim gave up, and one that is left alone always fits: admission made sure of that.
        """
        if request.num_computed_tokens % self._block_size:
            return ()  # there is room in the block of the last token that is computed
        num_tokens = request.num_computed_tokens + 1
        while (grant := self._kv.allocate(request, num_tokens)) is None:
            victim = self._queue.victim(self._running[self._running.index(request) :])
            self._running.remove(victim)
            self._preempt(victim)
            if victim is request:
                return None
        return grant.block_ids

    def _preempt(self, request: Request) -> None:
        """Recompute: the blocks go, the tokens stay, and those still in flight will be added when they come."""
        self._vacate(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.add_preempted(request)
        self.num_waiting_tokens += request.num_prompt_tokens

    def _take_back_damaged(
        self, batch: ScheduledBatch, tables: Sequence[BlockTable], failed_slots: Sequence[int]
    ) -> None:
        """Requests that were given blocks which could not be loaded begin again without, as after a preemption.

        Such blocks are in one table each, of a request that has its first row in this batch: they have no key before
        this row is confirmed, and it never is. So nobody else reads them, and no token that was computed on them has
        been delivered. Rows of the same table in later steps are dropped when they come.
        """
        self._kv.forget(failed_slots)
        failed = {load.block_id for load in batch.loads if load.slot in failed_slots}
        for row, table in reversed(list(zip(batch.rows, tables, strict=True))):  # the first comes back first
            num_sound = next((i for i, block_id in enumerate(row.new_block_ids) if block_id in failed), None)
            if num_sound is None:
                continue
            table.is_damaged = True
            request = self._requests.get(row.request_id)
            if request is not None and self._kv.holds(request, table):
                self._uncount_cached(request, num_sound * self._block_size)
                self._running.remove(request)
                self._preempt(request)

    def _uncount_cached(self, request: Request, num_found: int) -> None:
        """When it first ran, it found only so many of its tokens."""
        if request.num_preemptions == 0:
            self.num_cached_tokens -= request.num_cached_tokens - num_found
            request.num_cached_tokens = num_found

    def _schedule_prefills(self, step: "_StepPlan", begun: Sequence[Request], now: float, can_admit: bool) -> None:
        """What is left of the step, to those that have begun and to newcomers, in the queue's order."""
        waiting = deque(self._queue.prefill_order(begun, now))
        while step.budget.has_prefill_room and (waiting or can_admit):
            newcomer = self._newcomer(step, now) if can_admit else None
            if newcomer is not None and (not waiting or self._queue.goes_first(newcomer, waiting[0], now)):
                can_admit = self._admit(step, newcomer, now)
            elif waiting:
                self._prefill(step, waiting.popleft(), ())
            else:
                return

    def _newcomer(self, step: "_StepPlan", now: float) -> Request | None:
        """The queue's next, but of tenants that hold their share of the pool or of the rows."""
        if len(self._running) >= self.max_running:
            return None
        while (request := self._queue.peek(now, step.full_tenants)) is not None:
            if self._is_within_share(request, now):
                # A preempted request's tokens in flight are not known yet, so it cannot be described to the executor.
                return None if request.num_pending_tokens else request
            step.full_tenants.append(request.tenant)
        return None

    def _is_within_share(self, request: Request, now: float) -> bool:
        """A tenant may always have one request that runs. The last rows are for tenants that have not had their part:
        whoever comes back finds one, however many requests of others there are."""
        kv_share = self._quotas.kv_share(request.tenant)
        is_scarce = self.max_running - len(self._running) <= self.max_running // ROWS_KEPT
        if kv_share == 1.0 and not is_scarce:
            return True
        own = [other for other in self._running if other.tenant == request.tenant]
        if is_scarce and len(own) > self._queue.row_share(request.tenant, now) * self.max_running:
            return False
        num_needed = -(-max(request.num_expected_tokens, request.num_tokens) // self._block_size)
        return not own or self._kv.num_blocks_of(own) + num_needed <= kv_share * self._kv.num_blocks

    def _admit(self, step: "_StepPlan", request: Request, now: float) -> bool:
        """Lets it run if it fits. Blocks for all its known tokens are taken at once, so no two requests can each hold
        half of what they need, and some are left for all that run to grow into (``Reserve``): the newcomer is not let
        in only to be thrown out."""
        headroom = self.reserve.headroom(self._running, request)
        grant = self._kv.allocate(request, request.num_tokens, headroom)
        if grant is None:
            return False
        self._queue.remove(request)
        self.num_waiting_tokens -= request.num_prompt_tokens
        insort(self._running, request, key=_priority)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = grant.num_cached_tokens
        if request.num_preemptions == 0:
            request.began_s = now
            request.num_cached_tokens = request.num_charged_tokens = grant.num_cached_tokens
            self.num_prompt_tokens += request.num_prompt_tokens
            self.num_cached_tokens += grant.num_cached_tokens
        step.admit(request)
        self._prefill(step, request, grant.block_ids)
        return True

    def _prefill(self, step: "_StepPlan", request: Request, new_block_ids: tuple[int, ...]) -> None:
        wanted = _num_wanted_tokens(request)
        num_tokens = step.budget.tokens_for(request, wanted)
        step.budget.take(request, num_tokens, num_tokens == wanted)
        charge = self._add_row(step, request, num_tokens, num_tokens == wanted, new_block_ids)
        self._queue.charge(request.tenant, charge)

    def _add_row(
        self, step: "_StepPlan", request: Request, num_tokens: int, samples: bool, new_block_ids: tuple[int, ...]
    ) -> int:
        """Promises ``num_tokens`` more, and the next token if they reach the last one there is (``samples``). Returns
        what is to be charged for them: nothing for what was computed, or found, before."""
        start = request.num_computed_tokens
        step.rows.append(ScheduledRow(request.request_id, start, num_tokens, new_block_ids, samples))
        step.tables.append(self._kv.table(request))
        request.num_computed_tokens = end = start + num_tokens
        request.num_pending_tokens += samples
        charged = request.num_charged_tokens
        if end <= charged:
            return 0
        request.num_charged_tokens = end
        weight = PREFILL_WEIGHT if start < len(request.prompt_token_ids) else DECODE_WEIGHT
        return weight * (end - max(start, charged))

    def _confirm(self, batch: ScheduledBatch) -> list[BlockTable]:
        if batch.step_id != self._num_updates or batch.step_id >= self._num_steps:
            raise ValueError(f"step {batch.step_id} came back, step {self._num_updates} was expected")
        self._num_updates += 1
        return self._in_flight.popleft()

    def _accept(self, request: Request, token: SampledToken, now: float) -> RequestOutput:
        request.output_token_ids.append(token.token_id)
        request.num_pending_tokens -= 1
        request.last_token_s = now
        if request.first_token_s is None:
            request.first_token_s = now
            self._history.first_token(request, now)
        logprobs = () if token.logprobs is None else (token.logprobs,)
        reason = _finish_reason(request, token.token_id)
        if reason is None:
            ids = (token.token_id,)
            return RequestOutput(request.request_id, ids, logprobs, None, None, None, request.num_cached_tokens)
        if reason is FinishReason.STOP:
            request.stop_token_id = token.token_id
        return self._finish(request, reason, now, (token.token_id,), logprobs)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        now: float,
        new_token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        error: str | None = None,
    ) -> RequestOutput:
        """The one way out, in any status."""
        was_running = request.status is RequestStatus.RUNNING
        if was_running:
            self._running.remove(request)
            self._vacate(request)
        else:
            self.num_waiting_tokens -= request.num_prompt_tokens
        self._queue.leave(request, was_running)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self._history.ended(request, now)
        self._quotas.leave(request, now)
        stop, cached = request.stop_token_id, request.num_cached_tokens
        return RequestOutput(request.request_id, new_token_ids, logprobs, reason, stop, error, cached)

    def _vacate(self, request: Request) -> None:
        self._kv.free(request)
        self._released.append(request.request_id)


@dataclass(slots=True)
class _StepPlan:
    """A step while it is being filled."""

    budget: StepBudget
    rows: list[ScheduledRow] = field(default_factory=list)
    tables: list[BlockTable] = field(default_factory=list)  # each row's
    admitted: list[NewRequest] = field(default_factory=list)
    gives_way: bool = False  # some that decode have no row, for others' first tokens
    full_tenants: list[str] = field(default_factory=list)  # have their share of the pool

    def admit(self, request: Request) -> None:
        token_ids = request.prompt_token_ids + tuple(request.output_token_ids)
        new = NewRequest(
            request.request_id, token_ids, request.num_prompt_tokens, request.sampling, request.eos_token_ids
        )
        self.admitted.append(new)


def _priority(request: Request) -> int:
    return request.request_class.priority


def _num_wanted_tokens(request: Request) -> int:
    """How far computed is behind; 0 once every token it may have is made or promised."""
    num_output = len(request.output_token_ids) + request.num_pending_tokens
    if num_output >= request.max_tokens:
        return 0
    return len(request.prompt_token_ids) + num_output - request.num_computed_tokens


def _finish_reason(request: Request, token_id: int) -> FinishReason | None:
    """``min_tokens`` come before any stop token counts. The context limit is part of ``max_tokens``."""
    num_output_tokens = len(request.output_token_ids)
    sampling = request.sampling
    if num_output_tokens > sampling.min_tokens:
        is_eos = token_id in request.eos_token_ids and not sampling.ignore_eos
        if is_eos or token_id in sampling.stop_token_ids:
            return FinishReason.STOP
    return FinishReason.LENGTH if num_output_tokens >= request.max_tokens else None
