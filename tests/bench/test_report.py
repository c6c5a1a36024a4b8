import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.table import Table

from headway.bench.measures import Objectives, RequestRecord, RunSummary, summarise
from headway.bench.offline import RunTimes, Work
from headway.bench.plot import attainment_svg
from headway.bench.report import (
    latency_json,
    latency_table,
    serve_json,
    serve_remarks,
    serve_table,
    throughput_json,
    throughput_table,
    void_remarks,
)

OBJECTIVES = Objectives(0.5, 0.05)
ROUNDS = [RunTimes(Work(1, 100, 3), [[0.5, 0.6, 0.8]]), RunTimes(Work(1, 100, 3), [[1.0, 1.1, 1.2]])]
ONE_TOKEN = [RunTimes(Work(1, 100, 1), [[0.5]])]


def run_at(rate: float, share: float = 1.0, void: tuple[str, ...] = (), num_failed: int = 0) -> RunSummary:
    record = RequestRecord(0.0, 10, 4, sent_s=0.002, event_s=[0.102, 0.142], end_s=0.142, num_output_tokens=2)
    failed = [RequestRecord(1.0, 10, 4, sent_s=1.0, error="http 503")] * num_failed
    return replace(summarise(rate, [record, *failed], [0.001], 2.0, OBJECTIVES, 0.025), attainment=share, void=void)


def text_of(table: Table) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_throughput() -> None:
    text = text_of(throughput_table([ROUNDS, ONE_TOKEN]))
    assert "1 x (100 in + 3 out)" in text and "150 (100-200)" in text
    [work, single] = throughput_json([ROUNDS, ONE_TOKEN])
    assert (work["batch"], work["prompt"], work["output"]) == (1, 100, 3)
    assert work["prefill_tokens_per_s"] == [200.0, 100.0]
    assert single["decode_tokens_per_s"] == []


def test_latency() -> None:
    text = text_of(latency_table([ROUNDS, ONE_TOKEN]))
    assert "750.0 (500.0-1000.0)" in text and "100.0" in text
    [work, single] = latency_json([ROUNDS, ONE_TOKEN])
    assert work["ttft_s"] == [0.5, 1.0] and work["token_s"]["p50"] == pytest.approx(0.1)
    assert single["token_s"]["p50"] is None


def test_a_servers_table_has_a_column_for_each_rate() -> None:
    text = text_of(serve_table([run_at(1.0), run_at(2.5, 0.5, num_failed=1)], OBJECTIVES))
    for cell in ("TTFT <= 500 ms", "2.5", "1 of 2", "50.0%", "100.0 / 100.0 / 100.0", "40.0"):
        assert cell in text


def test_a_void_run_shows_no_attainment() -> None:
    run = run_at(4.0, 0.75, void=("late",))
    text = text_of(serve_table([run], OBJECTIVES))
    assert "VOID" in text and "75" not in text
    assert void_remarks([run]) == ["VOID at 4/s, says nothing of the server: late"]


def test_a_run_without_any_answer_can_be_shown() -> None:
    failed = RequestRecord(0.0, 10, 4, sent_s=0.0, error="timeout")
    run = summarise(1.0, [failed], [], 2.0, OBJECTIVES, 0.025)
    assert "0 of 1" in text_of(serve_table([run], OBJECTIVES))
    assert serve_json([run])["runs"][0]["ttft"]["p50"] is None


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run_at(1), run_at(2, 0.5)], "goodput (attainment >= 90 %): 1 requests a second;"),
        ([run_at(1), run_at(2, 0.95)], "2 requests a second or more (the highest rate tried); at >= 99 %: 1 requests"),
        ([run_at(1, 0.1)], "none of the rates tried"),
        ([run_at(1, void=("late",))], "unknown, every run is void"),
    ],
)
def test_goodput_is_said(runs: list[RunSummary], said: str) -> None:
    assert said in serve_remarks(runs)[0]


def test_failures_and_odd_lengths_are_said() -> None:
    remarks = serve_remarks([replace(run_at(2, num_failed=3), output_tokens_ratio=0.4, input_tokens_ratio=1.01)])
    assert "at 2/s: 3 failed: http 503" in remarks
    assert remarks[-1] == "at 2/s: answers were 0.40 times as long as asked, by the server's count"


def test_json_is_json() -> None:
    value = serve_json([run_at(1.0, math.nan)])
    assert json.loads(json.dumps(value, allow_nan=False))["runs"][0]["attainment"] is None
    assert serve_json([run_at(1.0)])["goodput"] == {"rate": 1.0, "is_lower_bound": True}


def test_the_plot_shows_each_run_in_its_place() -> None:
    runs = [run_at(4.0, 0.5), run_at(1.0, 1.0), run_at(2.0, 0.2, void=("late",))]
    root = ElementTree.fromstring(attainment_svg(runs, "a <b> & c"))
    names = {element.text for element in root.iter() if element.text}
    assert {"a <b> & c: requests within the objectives", "1/s: 100%", "2/s: 20% (void)", "4/s: 50%"} <= names
    svg = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{svg}circle")
    assert [circle.get("fill") for circle in circles] == ["steelblue", "white", "steelblue"]
    assert [float(circle.get("cx", 0)) for circle in circles] == sorted(float(c.get("cx", 0)) for c in circles)
    [line] = root.findall(f"{svg}polyline")
    assert len(line.get("points", "").split()) == 2  # the void run is not joined
