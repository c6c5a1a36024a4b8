"""The executor of this machine: a step is computed in the caller's thread, before ``submit`` returns."""

import time

from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.executor import ExecutorInfo
from headway.worker.model_runner import ModelRunner


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
    def __init__(self, runner: ModelRunner, info: ExecutorInfo) -> None:
        self.info = info
        self.runner = runner

    def submit(self, batch: ScheduledBatch) -> FinishedStep:
        started = time.perf_counter()
        try:
            sampled: tuple[SampledToken, ...] = self.runner.run(batch)
        except Exception as error:
            return FinishedStep(error)
        return FinishedStep(StepResult(batch.step_id, sampled, time.perf_counter() - started))
