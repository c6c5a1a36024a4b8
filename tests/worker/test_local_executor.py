import pytest

from fakes import make_info
from headway.core.batch import SampledToken, ScheduledBatch
from headway.worker.local_executor import LocalExecutor

BATCH = ScheduledBatch(7, (), (), ())


class Runner:
    def __init__(self, outcome):
        self._outcome = outcome

    def run(self, batch):
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def test_a_step_has_run_when_submit_returns():
    sampled = (SampledToken("a", 1),)
    handle = LocalExecutor(Runner(sampled), make_info()).submit(BATCH)
    result = handle.result()
    assert handle.is_done()
    assert (result.step_id, result.sampled) == (7, sampled)
    assert result.seconds >= 0


def test_a_step_that_fails_is_raised_by_its_handle_not_by_submit():
    handle = LocalExecutor(Runner(RuntimeError("out of order")), make_info()).submit(BATCH)
    assert handle.is_done()
    with pytest.raises(RuntimeError, match="out of order"):
        handle.result()
