"""From a scheduled batch to sampled tokens: keeps each request's tokens and block table, runs the program, samples."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.core.batch import NewRequest, SampledToken, ScheduledBatch, ScheduledRow
from headway.core.executor import ExecutorInfo
from headway.ops.contract import Float32, StepInput, StepProgram
from headway.worker.sampler import Sampler, SamplingState


@dataclass(slots=True)
class _Sequence:
    """A live request: its row of the runner's arrays, how many blocks are in its table, what sampling remembers."""

    slot: int
    num_blocks: int
    sampling: SamplingState


@dataclass(slots=True)
class SamplingTotals:
    """What sampling came to over some steps: the logits it read, and the time it took."""

    calls: int = 0
    seconds: float = 0.0
    logit_bytes: int = 0

    def add(self, logits: Float32, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.logit_bytes += logits.nbytes


class ModelRunner:
    """Owns the device's view of every live request. Batches must come in the order they were scheduled.

    A live request has a slot, its row of two arrays, so that a step's input is gathered in a few calls, not request by
    request:

        tokens         [slots, max_context + 1]     known tokens by position; the last one is sampled, never computed
        block_tables   [slots, blocks of a context] -1 where there is none

    At most ``info.max_batch_rows`` requests are live at a time: whoever runs can have a row in every step.
    ``sampling`` is None, or what a profiler has put there to be added to.
    """

    def __init__(self, program: StepProgram, sampler: Sampler, info: ExecutorInfo) -> None:
        self._program = program
        self._sampler = sampler
        self._block_size = info.block_size
        self._tokens = np.zeros((info.max_batch_rows, info.max_context + 1), np.int32)
        self._block_tables = np.full((info.max_batch_rows, -(-info.max_context // info.block_size)), -1, np.int32)
        self._free_slots = list(range(info.max_batch_rows))
        self._sequences: dict[str, _Sequence] = {}
        self.sampling: SamplingTotals | None = None

    def run(self, batch: ScheduledBatch) -> tuple[SampledToken, ...]:
        """Computes one step. Returns a token, or an error of its own, for each row with ``samples``."""
        self._update_sequences(batch)
        if not batch.rows:
            return ()
        sequences = [self._sequences[row.request_id] for row in batch.rows]
        slots = np.array([sequence.slot for sequence in sequences])
        starts = np.array([row.start for row in batch.rows], np.int32)
        ends = starts + np.array([row.num_tokens for row in batch.rows], np.int32)
        samples = np.array([row.samples for row in batch.rows])
        logits = self._program.run(self._step_input(slots, starts, ends, samples))
        states = [sequence.sampling for sequence, row in zip(sequences, batch.rows, strict=True) if row.samples]
        if not states:
            return ()
        sampled = self._sample(logits, states)
        # A row that failed ends its request. Until then any id of the vocabulary may stand for the token it lacks.
        self._tokens[slots[samples], ends[samples]] = [0 if token.error else token.token_id for token in sampled]
        return tuple(sampled)

    def _sample(self, logits: Float32, states: list[SamplingState]) -> list[SampledToken]:
        if self.sampling is None:
            return self._sampler.sample(logits, states)
        started = time.perf_counter()
        sampled = self._sampler.sample(logits, states)
        self.sampling.add(logits, time.perf_counter() - started)
        return sampled

    def _update_sequences(self, batch: ScheduledBatch) -> None:
        for request_id in batch.released:
            sequence = self._sequences.pop(request_id, None)
            if sequence is not None:  # a request preempted before its first row was never known here
                self._free_slots.append(sequence.slot)
        for request in batch.admitted:
            self._sequences[request.request_id] = self._new_sequence(request)
        for row in batch.rows:
            if row.new_block_ids:
                self._add_blocks(row)

    def _new_sequence(self, request: NewRequest) -> _Sequence:
        slot = self._free_slots.pop()
        self._tokens[slot, : len(request.token_ids)] = request.token_ids
        self._block_tables[slot] = -1
        return _Sequence(slot, 0, SamplingState(request))

    def _add_blocks(self, row: ScheduledRow) -> None:
        sequence = self._sequences[row.request_id]
        end = sequence.num_blocks + len(row.new_block_ids)
        self._block_tables[sequence.slot, sequence.num_blocks : end] = row.new_block_ids
        sequence.num_blocks = end

    def _step_input(
        self, slots: NDArray[np.intp], starts: NDArray[np.int32], ends: NDArray[np.int32], samples: NDArray[np.bool_]
    ) -> StepInput:
        """Positions ``starts`` to ``ends - 1`` of each request [r]; logits are wanted of the last, where it samples."""
        counts = ends - starts
        row_starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=row_starts[1:])
        positions = np.repeat(starts - row_starts[:-1], counts) + np.arange(row_starts[-1], dtype=np.int32)
        num_blocks = -(-int(ends.max()) // self._block_size)
        return StepInput(
            token_ids=self._tokens[np.repeat(slots, counts), positions],
            positions=positions,
            row_starts=row_starts,
            block_tables=self._block_tables[slots, :num_blocks],
            logit_rows=row_starts[1:][samples] - np.int32(1),
        )
