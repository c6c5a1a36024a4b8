"""What the core asks of any device, real or simulated: two things and a handle."""

from dataclasses import dataclass
from typing import Protocol

from headway.core.batch import ScheduledBatch, StepResult


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Measured facts about a device, fixed once it is up.

    ``max_context`` is the longest sequence (prompt plus output) in tokens; it never exceeds the pool,
    ``num_blocks * block_size``. ``max_batch_tokens`` and ``max_batch_rows`` bound one step. No more
    than ``max_batch_rows`` requests are known to the executor (admitted and not released) at a time. Each of
    ``num_disk_slots`` holds a block outside the pool; 0: there is no such tier.
    """

    num_blocks: int
    block_size: int
    max_context: int
    max_batch_tokens: int
    max_batch_rows: int
    vocab_size: int
    num_disk_slots: int = 0


class StepHandle(Protocol):
    def is_done(self) -> bool: ...

    def result(self) -> StepResult:
        """Waits for the step. Raises when the whole step failed, which no single request can cause.

        Its requests then end; what the batch ``released``, ``admitted``, ``saves`` and ``loads`` has taken effect all
        the same. A slot whose save failed must not be loaded with success before it is saved again.
        """
        ...


class Executor(Protocol):
    info: ExecutorInfo

    def submit(self, batch: ScheduledBatch) -> StepHandle:
        """Starts a step. Batches run in the order they are submitted."""
        ...
