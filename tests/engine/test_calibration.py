"""Probes run on an executor that nothing has used yet, and leave nothing behind."""

from dataclasses import dataclass, field

import pytest

from fakes import make_info
from headway.core.batch import ScheduledBatch, StepResult
from headway.core.executor import ExecutorInfo
from headway.core.step_time import StepShape
from headway.engine.calibration import calibrated


@dataclass
class Machine:
    """Takes 1 s a step and 0.01 s a token, and holds probes to what an executor may be asked."""

    info: ExecutorInfo
    now: float = 0.0
    slow_until: float = 0.0
    live: set[str] = field(default_factory=set)
    shapes: list[StepShape] = field(default_factory=list)

    def submit(self, batch: ScheduledBatch) -> "Machine":
        self.live -= set(batch.released)
        self.live |= {new.request_id for new in batch.admitted}
        self.seconds = 1 + 0.01 * batch.num_tokens if batch.rows else 0.0
        if self.now < self.slow_until:
            self.seconds *= 3
        self.now += self.seconds
        if batch.rows:
            self._check(batch)
        return self

    def _check(self, batch: ScheduledBatch) -> None:
        assert len(self.live) == len(batch.rows) <= self.info.max_batch_rows
        assert batch.num_tokens <= self.info.max_batch_tokens
        held = [block for row in batch.rows for block in row.new_block_ids]
        assert len(set(held)) == len(held) and all(0 <= block < self.info.num_blocks for block in held)
        assert all(row.start + row.num_tokens < self.info.max_context for row in batch.rows)
        self.shapes.append(StepShape.of(batch.rows))

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return StepResult(-1, (), self.seconds)


@pytest.mark.parametrize(
    "info",
    [
        make_info(num_blocks=1024, block_size=16, max_batch_tokens=512, max_batch_rows=64),
        make_info(num_blocks=8, block_size=16, max_batch_tokens=512, max_batch_rows=64),
        make_info(num_blocks=2, block_size=16, max_batch_tokens=1, max_batch_rows=1),
    ],
)
def test_probes_fit_the_executor_and_are_forgotten(info):
    machine = Machine(info)
    model = calibrated(machine, budget_s=1000, clock=lambda: machine.now)
    assert not machine.live
    for shape in machine.shapes:
        assert model.seconds(shape) == pytest.approx(1 + 0.01 * shape.num_tokens, rel=0.1)


def test_a_slow_machine_is_known_from_fewer_probes():
    machine = Machine(make_info(num_blocks=1024, block_size=16, max_batch_tokens=512, max_batch_rows=64))
    calibrated(machine, budget_s=0.5, clock=lambda: machine.now)
    assert len(machine.shapes) == 1


def test_the_fastest_run_of_each_probe_counts():
    """The first seconds are disturbed: everything takes three times as long."""
    machine = Machine(
        make_info(num_blocks=1024, block_size=16, max_batch_tokens=512, max_batch_rows=64), slow_until=30.0
    )
    model = calibrated(machine, budget_s=100.0, clock=lambda: machine.now)
    for shape in machine.shapes:
        assert model.seconds(shape) == pytest.approx(1 + 0.01 * shape.num_tokens, rel=0.1)
