import pytest

from fakes import make_info
from headway.core.batch import BlockTransfer, SampledToken, ScheduledBatch
from headway.worker.local_executor import LocalExecutor

BATCH = ScheduledBatch(7, (), (), ())


class Runner:
    def __init__(self, outcome):
        self._outcome = outcome

    def run(self, batch):
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class BlockFile:
    def __init__(self):
        self.transfers = []

    def transfer(self, saves, loads):
        self.transfers.append((saves, loads))
        return (4,)


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


def test_blocks_are_moved_before_the_step_runs_and_whatever_becomes_of_it():
    batch = ScheduledBatch(7, (), (), (), (BlockTransfer(1, 4),), (BlockTransfer(2, 5),))
    file = BlockFile()
    assert LocalExecutor(Runner(()), make_info(), file).submit(batch).result().failed_slots == (4,)
    LocalExecutor(Runner(RuntimeError("out of order")), make_info(), file).submit(batch)
    assert file.transfers == [(batch.saves, batch.loads)] * 2
