"""Time by operation of one executor's steps: the program's operations, and sampling."""

from typing import TYPE_CHECKING

from headway.ops.profile import OpProfile
from headway.worker.model_runner import ModelRunner, SamplingTotals

if TYPE_CHECKING:
    from headway.ops.native import Calibration, NativeBackend, NativeProgram


class StepProfiler:
    """Switches profiling of ``program`` on and off, and counts what its ``runner`` samples meanwhile."""

    def __init__(self, backend: "NativeBackend", program: "NativeProgram", runner: ModelRunner) -> None:
        self._backend = backend
        self._program = program
        self._runner = runner

    def start(self) -> None:
        self._runner.sampling = SamplingTotals()
        self._program.start_profile()

    def stop(self) -> list[OpProfile]:
        sampling, self._runner.sampling = self._runner.sampling, None
        assert sampling is not None, "start comes first"
        logits = OpProfile("sampling", sampling.calls, sampling.seconds, sampling.logit_bytes)
        return [*self._program.stop_profile(), logits]

    def calibrate(self) -> "Calibration":
        return self._backend.calibrate()
