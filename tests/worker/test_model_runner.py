"""The runner's gathering of a step's input, against a program that only looks, in schedules with preemption."""

import numpy as np
import pytest

from fakes import CoreDriver, expected_tokens, fake_token, make_info, make_request
from headway.config import EngineConfig, MemoryConfig, SchedulerConfig
from headway.core.batch import NewRequest, SampledToken, ScheduledBatch, ScheduledRow
from headway.core.engine_core import EngineCore
from headway.core.request import SamplingParams
from headway.worker.local_executor import LocalExecutor
from headway.worker.model_runner import ModelRunner

VOCAB = 1000


class Steps:
    """A program that keeps its inputs."""

    workspace_bytes = 0

    def __init__(self):
        self.inputs = []

    def run(self, step):
        self.inputs.append(step)
        return np.zeros((len(step.logit_rows), VOCAB), np.float32)


class FakeSampler:
    """The token of ``fakes.fake_token``; a row of a request in ``failing`` fails."""

    def __init__(self, failing=()):
        self.failing = failing

    def sample(self, logits, states):
        assert len(logits) == len(states)
        return [self._token(state) for state in states]

    def _token(self, state):
        if state.request_id in self.failing:
            return SampledToken(state.request_id, -1, error="made to fail")
        token_id = fake_token(state.request_id, state.num_tokens, VOCAB)
        state.num_tokens += 1
        return SampledToken(state.request_id, token_id)


def new_request(request_id, *token_ids):
    return NewRequest(request_id, token_ids, len(token_ids), SamplingParams(temperature=0), frozenset())


def runner(info, failing=()):
    program = Steps()
    return ModelRunner(program, FakeSampler(failing), info), program


def test_a_ragged_step_of_a_prefill_a_chunk_and_a_decode():
    run, program = runner(make_info(num_blocks=64, block_size=4, max_batch_rows=3))
    run.run(ScheduledBatch(0, (), (new_request("a", 7, 8, 9),), (ScheduledRow("a", 0, 3, (5,), True),)))
    sampled = run.run(
        ScheduledBatch(
            1,
            (),
            (new_request("b", *range(10, 20)), new_request("c", 30)),
            (
                ScheduledRow("a", 3, 1, (), True),
                ScheduledRow("b", 0, 6, (1, 2), False),
                ScheduledRow("c", 0, 1, (3,), True),
            ),
        )
    )
    assert [token.request_id for token in sampled] == ["a", "c"]
    step = program.inputs[1]
    assert step.token_ids.tolist() == [fake_token("a", 3, VOCAB), 10, 11, 12, 13, 14, 15, 30]
    assert step.positions.tolist() == [3, 0, 1, 2, 3, 4, 5, 0]
    assert step.row_starts.tolist() == [0, 1, 7, 8]
    assert step.block_tables.tolist() == [[5, -1], [1, 2], [3, -1]]
    assert step.logit_rows.tolist() == [0, 7]
    for array in (step.token_ids, step.positions, step.row_starts, step.block_tables, step.logit_rows):
        assert array.dtype == np.int32 and array.flags.c_contiguous


def test_a_step_that_samples_nothing_returns_nothing():
    run, _ = runner(make_info())
    batch = ScheduledBatch(0, (), (new_request("a", 1, 2, 3),), (ScheduledRow("a", 0, 2, (0,), False),))
    assert run.run(batch) == ()


def test_a_slot_has_nothing_of_its_last_owner():
    run, program = runner(make_info(block_size=4, max_batch_rows=2))
    rows = (ScheduledRow("a", 0, 9, (4, 5, 6), True), ScheduledRow("other", 0, 9, (1, 2, 3), True))
    run.run(ScheduledBatch(0, (), (new_request("a", *range(9)), new_request("other", *range(9))), rows))
    rows = (ScheduledRow("b", 0, 2, (7,), True), ScheduledRow("other", 9, 1, (), True))
    run.run(ScheduledBatch(1, ("a",), (new_request("b", 50, 51),), rows))
    assert program.inputs[1].token_ids.tolist() == [50, 51, fake_token("other", 9, VOCAB)]
    assert program.inputs[1].block_tables.tolist() == [[7, -1, -1], [1, 2, 3]]


def test_releasing_a_request_that_never_had_a_row_is_no_error():
    run, _ = runner(make_info())
    batch = ScheduledBatch(0, ("unknown",), (new_request("a", 1),), (ScheduledRow("a", 0, 1, (0,), True),))
    assert len(run.run(batch)) == 1


def test_a_failed_row_feeds_a_token_of_the_vocabulary_to_steps_in_flight():
    run, program = runner(make_info(), failing={"a"})
    run.run(ScheduledBatch(0, (), (new_request("a", 1, 2),), (ScheduledRow("a", 0, 2, (0,), True),)))
    run.run(ScheduledBatch(1, (), (), (ScheduledRow("a", 2, 1, (), True),)))
    assert program.inputs[1].token_ids.tolist() == [0]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_whole_runs_with_preemption_give_each_request_its_own_tokens(max_in_flight):
    """Prompt and answer are what each position is fed, whatever slot, chunk or recompute it comes from."""
    info = make_info(num_blocks=8, block_size=2, max_batch_tokens=5, max_batch_rows=3, vocab_size=VOCAB)
    run, program = runner(info)
    driver = CoreDriver(
        EngineCore(
            LocalExecutor(run, info),
            EngineConfig(SchedulerConfig(max_in_flight=max_in_flight), MemoryConfig(reserve="none")),
        )
    )
    requests = [make_request(f"r{i}", num_prompt_tokens=3 + i, max_tokens=8) for i in range(5)]
    for request in requests:
        driver.add(request)
    answers = driver.run()
    assert driver.core.num_preemptions > 0
    for request in requests:
        assert answers[request.request_id].token_ids == expected_tokens(request, VOCAB)[0]
    for step in program.inputs:
        for i, table in enumerate(step.block_tables):
            last = step.positions[step.row_starts[i + 1] - 1]
            assert (table[: last // 2 + 1] >= 0).all()
