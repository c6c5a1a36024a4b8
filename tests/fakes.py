"""Fakes that hold the other side to the contract."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from headway.config import EngineConfig, SchedulerConfig
from headway.core.admission import Admission
from headway.core.batch import (
    BlockTransfer,
    NewRequest,
    RequestOutput,
    SampledToken,
    ScheduledBatch,
    ScheduledRow,
    StepResult,
    TokenLogprobs,
)
from headway.core.engine_core import EngineCore, InFlightStep
from headway.core.executor import ExecutorInfo
from headway.core.request import FinishReason, Request, SamplingParams
from headway.core.step_time import StepShape, StepTimes

WAIT_S = 20.0  # how long a test waits for what must happen; never reached unless something hangs


def fake_token(request_id: str, position: int, vocab_size: int) -> int:
    """The token at a position of a sequence: whatever the schedule, the text must be the same."""
    return crc32(f"{request_id}@{position}".encode()) % vocab_size


@dataclass
class FakeSequence:
    """What an executor knows of a request: its tokens, how many are in the pool, and where."""

    new: NewRequest
    token_ids: list[int]
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    is_spoilt: bool = False


def fake_logprobs(sequence: FakeSequence, token_id: int) -> TokenLogprobs | None:
    count = sequence.new.sampling.logprobs
    if count is None:
        return None
    return TokenLogprobs(-0.5, tuple((token_id + rank, -0.5 - rank) for rank in range(count)))


class Gate:
    """For ``before_step``: lets a step run for each ``open()``, and ``wait`` waits until one is at the gate."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._tickets = threading.Semaphore(0)
        self._is_open = False

    def __call__(self) -> None:
        self._arrived.release()
        if not self._is_open:
            assert self._tickets.acquire(timeout=WAIT_S)

    def wait(self) -> None:
        assert self._arrived.acquire(timeout=WAIT_S)

    def open(self, steps: int = 1) -> None:
        self._tickets.release(steps)

    def open_for_good(self) -> None:
        self._is_open = True
        self._tickets.release(1000)


def pause() -> None:
    """For ``before_step``: lets other threads have the interpreter lock, as a real step does."""
    time.sleep(0.001)


class FakeHandle:
    def __init__(self, executor: "FakeExecutor", batch: ScheduledBatch) -> None:
        self._executor = executor
        self._batch = batch

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._executor.run_until(self._batch.step_id)


SPOILT = (-1,)  # what a block or a slot holds whose transfer failed, or that was computed on such a block


class FakeExecutor:
    """Computes nothing, but insists on everything ``ScheduledBatch`` promises; a broken promise is an AssertionError.

    Steps wait in a queue until their result is asked for and then run in order, so that several can be in flight.
    ``errors`` maps a request id to the position whose row fails; ``failing_steps`` holds ids of steps that fail as a
    whole. ``next_token`` may replace ``fake_token``; ``before_step`` is called before each step runs and may wait.
    ``save_fails`` and ``load_fails`` are asked at each. What is computed on a block that could not be loaded is wrong
    or an error. ``batches`` is the record of everything submitted.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        errors: dict[str, int] | None = None,
        next_token: Callable[[FakeSequence], int] | None = None,
        before_step: Callable[[], object] = lambda: None,
    ) -> None:
        self.info = info
        self.errors = errors or {}
        self.failing_steps: Container[int] = ()
        self.save_fails: Callable[[], bool] = lambda: False
        self.load_fails: Callable[[], bool] = lambda: False
        self._next_token = next_token or self._fake_token
        self._before_step = before_step
        self.batches: list[ScheduledBatch] = []
        self.sequences: dict[str, FakeSequence] = {}
        self._queue: deque[ScheduledBatch] = deque()
        self._results: dict[int, StepResult] = {}
        self._holders: Counter[int] = Counter()  # of each block, live requests
        self._contents: dict[int, tuple[int, ...]] = {}  # of each block, all tokens from position 0 to its last one
        self._slots: dict[int, tuple[int, ...]] = {}  # likewise
        self.num_spoilt = 0  # requests that were given a block which could not be loaded

    def submit(self, batch: ScheduledBatch) -> FakeHandle:
        assert batch.step_id == len(self.batches), "steps are numbered in order"
        self.batches.append(batch)
        self._queue.append(batch)
        return FakeHandle(self, batch)

    def run_until(self, step_id: int) -> StepResult:
        while self._queue and self._queue[0].step_id <= step_id:
            batch = self._queue.popleft()
            self._results[batch.step_id] = self._run(batch)
        if step_id in self.failing_steps:
            raise RuntimeError(f"step {step_id} was made to fail")
        return self._results.pop(step_id)

    def _run(self, batch: ScheduledBatch) -> StepResult:
        self._before_step()
        for request_id in batch.released:
            self._release(request_id)
        for new in batch.admitted:
            assert new.request_id not in self.sequences, f"{new.request_id} is known already"
            self.sequences[new.request_id] = FakeSequence(new, list(new.token_ids))
        assert len(self.sequences) <= self.info.max_batch_rows
        self._check_limits(batch)
        failed = [save.slot for save in batch.saves if not self._save(save)]
        failed += [load.slot for load in batch.loads if not self._load(load)]
        sampled = [token for row in batch.rows if (token := self._compute(row)) is not None]
        return StepResult(batch.step_id, tuple(sampled), 0.0, tuple(failed))

    def _save(self, save: BlockTransfer) -> bool:
        """Only what had a key is worth it: a block that is full, computed and held by nobody."""
        assert 0 <= save.slot < self.info.num_disk_slots
        content = self._contents[save.block_id]
        assert content != SPOILT and len(content) % self.info.block_size == 0, f"{save}: nobody may name {content}"
        assert not self._holders[save.block_id], f"{save}: the block is in use"
        fails = self.save_fails()
        self._slots[save.slot] = SPOILT if fails else content
        return not fails

    def _load(self, load: BlockTransfer) -> bool:
        """``_take_cached`` compares what comes back with the tokens of whoever asked for it."""
        assert load.slot in self._slots, f"{load}: nothing was saved there"
        assert not self._holders[load.block_id], f"{load}: the block is in use"
        self._contents[load.block_id] = SPOILT if self.load_fails() else self._slots[load.slot]
        return self._contents[load.block_id] != SPOILT

    def _check_limits(self, batch: ScheduledBatch) -> None:
        assert 0 < len(batch.rows) <= self.info.max_batch_rows
        assert 0 < batch.num_tokens <= self.info.max_batch_tokens
        row_ids = [row.request_id for row in batch.rows]
        assert len(row_ids) == len(set(row_ids)), "one row a request"
        assert {new.request_id for new in batch.admitted} <= set(row_ids), "admitted without a row"

    def _compute(self, row: ScheduledRow) -> SampledToken | None:
        sequence = self.sequences[row.request_id]
        if not sequence.block_table:
            self._take_cached(sequence, row)
        self._add_blocks(sequence, row)
        end = row.start + row.num_tokens
        assert row.num_tokens > 0 and row.start == sequence.num_computed, f"{row} does not follow {sequence}"
        assert end <= len(sequence.token_ids), f"{row} computes a token that does not exist"
        assert end <= len(sequence.block_table) * self.info.block_size, f"{row} has no block for its last token"
        assert end < self.info.max_context, f"{row}: the next token would pass the context"
        assert row.samples == (end == len(sequence.token_ids)), f"{row} of {len(sequence.token_ids)} tokens"
        sequence.num_computed = end
        self._write(sequence, row.start, end)
        failing = self.errors.get(row.request_id, -1) in range(row.start, end)
        token_id = self._next_token(sequence)
        if sequence.is_spoilt:
            token_id = (token_id + 1) % self.info.vocab_size
            failing = end % 2 == 0
        if row.samples:
            sequence.token_ids.append(token_id)
        if failing:
            return SampledToken(row.request_id, 0, error=f"row of {row.request_id} failed")
        return SampledToken(row.request_id, token_id, fake_logprobs(sequence, token_id)) if row.samples else None

    def _take_cached(self, sequence: FakeSequence, row: ScheduledRow) -> None:
        """A request may begin behind whole blocks that hold the very tokens it begins with."""
        size = self.info.block_size
        assert row.start % size == 0 and row.start < len(sequence.token_ids)
        for index, block_id in enumerate(row.new_block_ids[: row.start // size]):
            prefix = tuple(sequence.token_ids[: (index + 1) * size])
            sequence.is_spoilt |= self._contents.get(block_id) == SPOILT
            assert sequence.is_spoilt or self._contents.get(block_id) == prefix, (
                f"{row}: block {block_id} does not hold its tokens"
            )
        self.num_spoilt += sequence.is_spoilt
        sequence.num_computed = row.start

    def _add_blocks(self, sequence: FakeSequence, row: ScheduledRow) -> None:
        for block_id in row.new_block_ids:
            assert 0 <= block_id < self.info.num_blocks
            is_cached = len(sequence.block_table) < row.start // self.info.block_size
            assert is_cached or not self._holders[block_id], f"block {block_id} is held by another"
            self._holders[block_id] += 1
            sequence.block_table.append(block_id)

    def _write(self, sequence: FakeSequence, start: int, end: int) -> None:
        size = self.info.block_size
        for index in range(start // size, -(-end // size)):
            block_id = sequence.block_table[index]
            assert self._holders[block_id] == 1, f"block {block_id} is written, and another reads it"
            tokens = tuple(sequence.token_ids[: min(end, (index + 1) * size)])
            self._contents[block_id] = SPOILT if sequence.is_spoilt else tokens

    def _fake_token(self, sequence: FakeSequence) -> int:
        return fake_token(sequence.new.request_id, sequence.num_computed, self.info.vocab_size)

    def _release(self, request_id: str) -> None:
        self._holders.subtract(self.sequences.pop(request_id).block_table)


def make_info(
    num_blocks: int = 64,
    block_size: int = 4,
    max_context: int | None = None,
    max_batch_tokens: int = 64,
    max_batch_rows: int = 8,
    vocab_size: int = 1000,
    num_disk_slots: int = 0,
) -> ExecutorInfo:
    context = max_context or num_blocks * block_size
    return ExecutorInfo(num_blocks, block_size, context, max_batch_tokens, max_batch_rows, vocab_size, num_disk_slots)


def make_request(
    request_id: str,
    num_prompt_tokens: int = 5,
    max_tokens: int | None = 8,
    eos_token_ids: frozenset[int] = frozenset(),
    **sampling: Any,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, seed=0, **sampling)
    return Request(request_id, tuple(range(1, num_prompt_tokens + 1)), params, eos_token_ids)


def expected_tokens(request: Request, vocab_size: int) -> tuple[list[int], FinishReason]:
    """What an admitted request must generate if nobody interferes, from the stop rules alone."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else request.eos_token_ids)
    tokens: list[int] = []
    for index in range(request.max_tokens):
        tokens.append(fake_token(request.request_id, request.num_prompt_tokens + index, vocab_size))
        if index >= sampling.min_tokens and tokens[-1] in stops:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


@dataclass
class Answer:
    """A request's outputs put together; a second terminal output is an AssertionError."""

    token_ids: list[int] = field(default_factory=list)
    last: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        assert self.last is None, f"{output} after the last output {self.last}"
        self.token_ids += output.new_token_ids
        if output.finish_reason is not None:
            self.last = output

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.last.finish_reason if self.last else None


class CoreDriver:
    """The driver loop of ``EngineCore``, one step at a time, on a clock that counts steps, or that ``times`` moves."""

    def __init__(self, core: EngineCore, times: StepTimes | None = None) -> None:
        self.core = core
        self._times = times
        self.now = 0.0
        self.answers: dict[str, Answer] = {}
        self.in_flight: deque[InFlightStep] = deque()

    def add(self, request: Request) -> Admission:
        admission = self.core.add_request(request, self.now)
        if admission.is_admitted:
            self.answers[request.request_id] = Answer()
        return admission

    def abort(self, request_id: str) -> None:
        output = self.core.abort_request(request_id, self.now)
        if output is not None:
            self.answers[request_id].add(output)

    def begin(self) -> bool:
        step = self.core.begin_step(self.now)
        if step is not None:
            self.in_flight.append(step)
        return step is not None

    def finish(self) -> list[RequestOutput]:
        step = self.in_flight.popleft()
        self.now += 1.0 if self._times is None else self._times.seconds(StepShape.of(step.batch.rows))
        try:
            outputs = self.core.finish_step(step, step.handle.result(), self.now)
        except RuntimeError as error:
            outputs = self.core.fail_step(step, str(error), self.now)
        for output in outputs:
            self.answers[output.request_id].add(output)
        return outputs

    def run(self, max_steps: int = 10_000) -> dict[str, Answer]:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            while self.begin():
                pass
            if not self.in_flight:
                assert self.core.num_running == self.core.num_waiting == 0, "requests left, but nothing to do"
                return self.answers
            self.finish()
        raise AssertionError(f"not done after {max_steps} steps")


@dataclass
class LinearStepTimes:
    """A step takes ``step_s`` and ``token_s`` a token. Remembers what it was told."""

    step_s: float
    token_s: float
    observed: list[tuple[StepShape, float]] = field(default_factory=list)
    mean_error: float = 0.0
    mean_bias: float = 0.0

    def seconds(self, shape: StepShape) -> float:
        return self.step_s + self.token_s * shape.num_tokens

    def observe(self, shape: StepShape, seconds: float) -> None:
        self.observed.append((shape, seconds))


def make_driver(
    info: ExecutorInfo | None = None,
    config: SchedulerConfig | None = None,
    errors: dict[str, int] | None = None,
    step_times: StepTimes | None = None,
    clock: StepTimes | None = None,
    **settings: Any,
) -> tuple[CoreDriver, FakeExecutor]:
    """``clock`` says how long steps take; without, each takes 1. ``settings`` are of ``EngineConfig``."""
    executor = FakeExecutor(info or make_info(), errors)
    settings.setdefault("scheduler", config or SchedulerConfig())
    core = EngineCore(executor, EngineConfig(**settings), step_times)
    return CoreDriver(core, clock), executor
