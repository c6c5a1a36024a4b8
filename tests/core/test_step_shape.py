"""Shapes of steps."""

from headway.core.batch import ScheduledRow
from headway.core.step_time import StepShape


def test_the_shape_of_a_step_counts_what_its_rows_compute_attend_to_and_read():
    decode, chunk = ScheduledRow("a", 9, 1, (), True), ScheduledRow("b", 2, 3, (), False)
    assert StepShape.of([decode]) == (1, 1, 1, 10, 10)
    assert StepShape.of([chunk]) == (3, 1, 0, 3 + 4 + 5, 5)
    assert StepShape.of([decode, chunk]) == (4, 2, 1, 22, 15)
