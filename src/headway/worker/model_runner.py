"""From a scheduled batch to sampled tokens: keeps each request's tokens and block table, runs the program, samples."""

from collections.abc import Iterable

import numpy as np

from headway.core.batch import NewRequest, SampledToken, ScheduledBatch, ScheduledRow
from headway.ops.contract import Int32, StepInput, StepProgram
from headway.worker.sampler import Sampler, SamplingState


class _Sequence:
    """A request as the device knows it. ``tokens`` and ``blocks`` have room for the longest sequence there can be."""

    def __init__(self, request: NewRequest, max_context: int, block_size: int) -> None:
        self.tokens = np.zeros(max_context + 1, np.int32)  # one more: the last token sampled is never computed
        self.tokens[: len(request.token_ids)] = request.token_ids
        self.num_tokens = len(request.token_ids)
        self.blocks = np.full(-(-max_context // block_size), -1, np.int32)
        self.num_blocks = 0
        self.sampling = SamplingState(request)

    def add_blocks(self, block_ids: tuple[int, ...]) -> None:
        self.blocks[self.num_blocks : self.num_blocks + len(block_ids)] = block_ids
        self.num_blocks += len(block_ids)

    def append(self, token_id: int) -> None:
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1


class ModelRunner:
    """Owns the device's view of every live request. Batches must come in the order they were scheduled."""

    def __init__(self, program: StepProgram, sampler: Sampler, max_context: int, block_size: int) -> None:
        self._program = program
        self._sampler = sampler
        self._max_context = max_context
        self._block_size = block_size
        self._sequences: dict[str, _Sequence] = {}

    def run(self, batch: ScheduledBatch) -> tuple[SampledToken, ...]:
        """Computes one step. Returns a token, or an error of its own, for each row with ``samples``."""
        self._update_sequences(batch)
        sequences = [self._sequences[row.request_id] for row in batch.rows]
        for row, sequence in zip(batch.rows, sequences, strict=True):
            sequence.add_blocks(row.new_block_ids)
        logits = self._program.run(_step_input(batch.rows, sequences))
        sampling = [sequence for row, sequence in zip(batch.rows, sequences, strict=True) if row.samples]
        if not sampling:
            return ()
        sampled = self._sampler.sample(logits, [sequence.sampling for sequence in sampling])
        for sequence, token in zip(sampling, sampled, strict=True):
            if token.error is None:
                sequence.append(token.token_id)
        return tuple(sampled)

    def _update_sequences(self, batch: ScheduledBatch) -> None:
        for request_id in batch.released:
            self._sequences.pop(request_id, None)  # a request preempted before its first row was never known here
        for request in batch.admitted:
            self._sequences[request.request_id] = _Sequence(request, self._max_context, self._block_size)


def _step_input(rows: tuple[ScheduledRow, ...], sequences: list[_Sequence]) -> StepInput:
    starts = np.array([row.start for row in rows], np.int32)
    counts = np.array([row.num_tokens for row in rows], np.int32)
    row_starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=row_starts[1:])
    offsets = np.repeat(starts - row_starts[:-1], counts)
    samples = np.array([row.samples for row in rows])
    token_ids = [
        sequence.tokens[row.start : row.start + row.num_tokens] for row, sequence in zip(rows, sequences, strict=True)
    ]
    return StepInput(
        token_ids=np.concatenate(token_ids),
        positions=offsets + np.arange(row_starts[-1], dtype=np.int32),
        row_starts=row_starts,
        block_tables=_block_tables(sequences),
        logit_rows=row_starts[1:][samples] - np.int32(1),
    )


def _block_tables(sequences: Iterable[_Sequence]) -> Int32:
    """[r, most blocks of any], -1 where a request has fewer."""
    sequences = list(sequences)
    width = max(sequence.num_blocks for sequence in sequences)
    return np.stack([sequence.blocks[:width] for sequence in sequences])
