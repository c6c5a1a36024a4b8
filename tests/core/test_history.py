import pytest

from fakes import make_request
from headway.core.history import History
from headway.core.request import FinishReason, Objective


def first_token(history: History, predicted: float | None, actual: float, deadline: float, late: bool = False) -> None:
    request = make_request("a")
    request.arrival_s, request.predicted_ttft_s, request.is_expected_late = 100.0, predicted, late
    request.objective = Objective(deadline_s=deadline)
    history.first_token(request, 100.0 + actual)


def test_seconds_per_departure_is_the_mean_gap_of_the_last_ends():
    history = History()
    assert history.seconds_per_departure is None
    for now in (10.0, 11.0, 14.0):
        history.ended(make_request("a"), now)
    assert history.seconds_per_departure == 2.0
    for now in range(100, 200):
        history.ended(make_request("a"), float(now))
    assert history.seconds_per_departure == 1.0


def test_lengths_are_learned_from_answers_that_ended_by_themselves():
    history = History()
    for reason, length in ((FinishReason.STOP, 30), (FinishReason.ABORT, 900), (FinishReason.ERROR, 900)):
        request = make_request("a")
        request.finish_reason, request.output_token_ids = reason, [1] * length
        history.ended(request, 0.0)
    assert history.lengths.remaining("", 0, 10_000) == 30


def test_the_error_of_predictions_is_relative_to_the_larger_time_and_has_a_sign():
    history = History()
    for _ in range(300):
        first_token(history, predicted=1.0, actual=2.0, deadline=5.0)
    assert history.ttft_error == pytest.approx(0.5, abs=1e-3)
    assert history.ttft_bias == pytest.approx(0.5, abs=1e-3)
    for _ in range(300):
        first_token(history, predicted=2.0, actual=1.0, deadline=5.0)
    assert history.ttft_bias == pytest.approx(-0.5, abs=1e-3)


def test_outcomes_of_deadlines_are_counted_where_there_was_one_and_a_prediction():
    history = History()
    first_token(history, 1.0, 2.0, deadline=5.0)
    first_token(history, 9.0, 2.0, deadline=5.0, late=True)
    first_token(history, 9.0, 8.0, deadline=5.0, late=True)
    first_token(history, 1.0, 8.0, deadline=5.0)
    first_token(history, None, 8.0, deadline=5.0)
    first_token(history, 1.0, 8.0, deadline=float("inf"))
    assert history.deadline_outcomes == {(late, was): 1 for late in (False, True) for was in (False, True)}
