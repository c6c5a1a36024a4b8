"""The thread team: where its threads may run, and that it gets its work done whatever it has to share."""

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headway import _native
from headway.model.checkpoint import open_checkpoint
from headway.model.scoring import scoring_program, sequence_logits
from headway.ops.native import NativeBackend
from tiny_checkpoints import tiny_model, write_gguf

TASKS = Path("/proc/self/task")
on_linux = pytest.mark.skipif(not TASKS.exists(), reason="threads can be told apart, and pinned, on Linux")


def threads():
    return {int(task.name) for task in TASKS.iterdir()}


@contextmanager
def new_threads(**pool):
    """The system's ids of the threads that a team has made."""
    before = threads()
    team = _native.ThreadPool(**pool)
    yield sorted(threads() - before)
    del team


@on_linux
def test_each_thread_but_the_callers_is_pinned():
    allowed = os.sched_getaffinity(0)
    cpus = sorted(allowed) * 2
    with new_threads(size=3, cpus=cpus[:3]) as made:
        assert sorted(os.sched_getaffinity(thread).pop() for thread in made) == sorted(cpus[1:3])
        assert os.sched_getaffinity(0) == allowed


@on_linux
def test_threads_that_are_not_pinned_may_run_wherever_the_caller_may():
    with new_threads(size=3) as made:
        assert [os.sched_getaffinity(thread) for thread in made] == [os.sched_getaffinity(0)] * 2


@on_linux
@pytest.mark.parametrize("cpu", [-1, 1 << 20])
def test_a_processor_that_is_not_there_is_an_error_and_leaves_no_thread(cpu):
    before = threads()
    with pytest.raises(RuntimeError, match=f"pinned to processor {cpu}"):
        _native.ThreadPool(3, [0, cpu, 0])
    assert threads() == before


def test_pinned_threads_need_a_processor_each():
    with pytest.raises(ValueError, match="every worker needs a processor"):
        _native.ThreadPool(3, [0])


@contextmanager
def busy_threads(count):
    """Python threads that never rest."""
    is_over = threading.Event()
    hogs = [threading.Thread(target=lambda: [None for _ in iter(is_over.is_set, True)]) for _ in range(count)]
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        is_over.set()
        for hog in hogs:
            hog.join()


@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("num_busy", [0, 2])
def test_a_team_of_any_size_gets_its_work_done_beside_busy_threads(size, num_busy, tmp_path):
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", "Q8_0")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    def logits(num_threads):
        program = scoring_program(checkpoint.architecture, checkpoint.weights(), NativeBackend(num_threads), 64)
        return sequence_logits(program, range(40), 4)

    expected = logits(1)
    with busy_threads(num_busy):
        assert np.array_equal(logits(size), expected)
