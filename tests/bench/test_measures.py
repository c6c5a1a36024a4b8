import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.measures import (
    CLIENT_ERROR,
    Goodput,
    Objectives,
    RequestRecord,
    RunSummary,
    attainment,
    client_lag,
    goodput,
    percentile,
    spread,
    summarise,
    void_reasons,
)

OBJECTIVES = Objectives(ttft_s=0.5, tpot_s=0.05)


def answered(sent_s: float, *event_s: float, tokens: int | None = None, end_s: float | None = None) -> RequestRecord:
    record = RequestRecord(sent_s, 10, 4, sent_s=sent_s, event_s=list(event_s))
    record.end_s = event_s[-1] if end_s is None else end_s
    record.num_output_tokens = len(event_s) if tokens is None else tokens
    return record


def failed(sent_s: float, kind: str) -> RequestRecord:
    return RequestRecord(sent_s, 10, 4, sent_s=sent_s, error=kind)


def summary(*records: RequestRecord, rate: float = 2.0, loop_lag_s: tuple[float, ...] = ()) -> RunSummary:
    return summarise(rate, records, loop_lag_s, 10.0, OBJECTIVES, max_lag_s=0.025)


def test_times_of_one_request() -> None:
    record = answered(1.0, 1.25, 1.5, 2.25)
    assert record.ttft_s == 0.25
    assert record.tpot_s == 0.5  # (2.25 - 1.25) / 2
    assert record.gaps_s == [0.25, 0.75]


def test_tpot_counts_tokens_and_not_pieces_of_text() -> None:
    assert answered(0.0, 1.0, 2.0, tokens=5).tpot_s == 0.25
    assert answered(0.0, 1.0, 2.0, tokens=5, end_s=3.0).tpot_s == 0.5
    assert answered(0.0, 1.0, tokens=1).tpot_s is None


@pytest.mark.parametrize(
    ("record", "meets"),
    [
        (answered(0.0, 0.5, 0.55), True),  # on both limits
        (answered(0.0, 0.51, 0.55), False),
        (answered(0.0, 0.5, 0.56), False),
        (answered(0.0, 0.5), True),  # a single token has no TPOT
        (failed(0.0, "timeout"), False),
        (replace(answered(0.0, 0.1, 0.12), error="cut stream"), False),
    ],
)
def test_an_objective_is_met_in_both_times_by_a_whole_answer(record: RequestRecord, meets: bool) -> None:
    assert record.meets(Objectives(0.5, 0.05 + 1e-12)) is meets


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.5), ([0.0, 10.0, 20.0, 30.0, 40.0], 0.9, 36.0), ([7.0], 0.99, 7)],
)
def test_percentiles_interpolate(values: list[float], q: float, expected: float) -> None:
    assert percentile(values, q) == pytest.approx(expected)


def test_nothing_measured_has_no_percentiles() -> None:
    assert math.isnan(percentile([], 0.5)) and math.isnan(spread([]).max)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)


def test_a_run_counts_failures_as_misses_and_leaves_them_out_of_percentiles() -> None:
    run = summary(
        answered(0.0, 0.2, 0.24, 0.28), answered(1.0, 2.0, 2.01), failed(2.0, "http 503"), failed(3.0, "http 503")
    )
    assert (run.num_requests, run.num_ok, run.errors) == (4, 2, {"http 503": 2})
    assert run.attainment == 0.25
    assert run.ttft.p50 == pytest.approx(0.6) and run.ttft.max == 1.0
    assert run.itl.max == pytest.approx(0.04)
    assert run.output_tokens_per_s == 0.5 and run.request_rate == 0.2
    assert run.input_tokens_ratio is None and run.output_tokens_ratio is None


def test_lengths_are_compared_where_the_server_counts() -> None:
    counted = replace(answered(0.0, 0.1, 0.2), is_counted=True, num_input_tokens=12, num_output_tokens=2)
    run = summary(counted, answered(0.0, 0.1))
    assert run.input_tokens_ratio == 1.2 and run.output_tokens_ratio == 0.5


def test_attainment_of_nothing_is_unknown() -> None:
    assert math.isnan(attainment([], OBJECTIVES))


# -- void runs --


def test_requests_that_left_late_void_a_run() -> None:
    late = [replace(answered(1.03, 1.1), scheduled_s=1.0) for _ in range(5)]
    [reason] = summary(*late).void
    assert "left late" in reason and "30.0 ms" in reason and "limit 25 ms" in reason


def test_a_client_that_stood_still_voids_a_run() -> None:
    on_time = answered(0.0, 0.1)
    assert summary(on_time, loop_lag_s=(0.024,) * 1000).void == ()  # late, but within the limit
    assert summary(on_time, loop_lag_s=(0.1,)).void == ()  # once in ten seconds
    [reason] = summary(on_time, loop_lag_s=(0.1, 0.05)).void
    assert "1.5%" in reason


def test_a_client_out_of_sockets_voids_a_run() -> None:
    [reason] = summary(answered(0.0, 0.1), failed(0.0, CLIENT_ERROR)).void
    assert "1 connections" in reason


def test_a_run_on_time_is_sound() -> None:
    assert void_reasons(client_lag([0.001], [0.0, 0.002], 10.0, 0.025), 0) == ()


# -- goodput --


def run_at(rate: float, share: float, void: tuple[str, ...] = ()) -> RunSummary:
    return replace(summary(answered(0.0, 0.1), rate=rate), attainment=share, void=void)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([run_at(1, 1.0), run_at(2, 0.9), run_at(4, 0.89)], Goodput(2, False)),
        ([run_at(4, 0.5), run_at(1, 1.0)], Goodput(1, False)),  # in any order
        ([run_at(1, 1.0), run_at(2, 0.95)], Goodput(2, True)),
        ([run_at(1, 0.2)], Goodput(0.0, False)),
        ([run_at(1, 1.0), run_at(2, 1.0, ("lag",))], Goodput(1, True)),
        ([run_at(1, 1.0, ("lag",))], None),
        ([], None),
    ],
)
def test_goodput_is_the_highest_sound_rate_that_attains(runs: list[RunSummary], expected: Goodput | None) -> None:
    assert goodput(runs) == expected


def test_goodput_at_a_stricter_attainment() -> None:
    assert goodput([run_at(1, 0.99), run_at(2, 0.95)], required=0.99) == Goodput(1, False)
