"""The executor of this machine: a step is computed in the caller's thread, before ``submit`` returns."""

import time
from typing import TYPE_CHECKING

from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.executor import ExecutorInfo
from headway.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from headway.worker.block_file import BlockFile


class FinishedStep:
    """A handle whose step has run, well or not."""

    def __init__(self, result: StepResult | Exception) -> None:
        self._result = result

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class LocalExecutor:
    """``block_file`` has the slots of ``info.num_disk_slots``; None where there are none."""

    def __init__(self, runner: ModelRunner, info: ExecutorInfo, block_file: "BlockFile | None" = None) -> None:
        self.info = info
        self.runner = runner
        self._block_file = block_file

    def submit(self, batch: ScheduledBatch) -> FinishedStep:
        started = time.perf_counter()
        failed_slots: tuple[int, ...] = ()
        try:
            if self._block_file is not None:  # first, so that it is done whatever becomes of the step
                failed_slots = self._block_file.transfer(batch.saves, batch.loads)
            sampled: tuple[SampledToken, ...] = self.runner.run(batch)
        except Exception as error:
            return FinishedStep(error)
        return FinishedStep(StepResult(batch.step_id, sampled, time.perf_counter() - started, failed_slots))
