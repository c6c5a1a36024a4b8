import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engines import REPORT
from typer.testing import CliRunner

from fake_engine import FakeEngine, refusal
from fakes import FakeExecutor, make_info
from headway.cli.app import app
from headway.core.admission import RefusalReason
from live_server import LiveServer, live_server
from profile_fakes import FakeProfiler

LATE_IS_FINE = ("--max-lag-ms", "60000")  # the machine that runs the tests may be busy


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


# -- serve, against the whole server over a fake engine --


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    engine = FakeEngine()
    engine.answer = "x" * 200
    with live_server(engine=engine) as live:
        yield live


@pytest.fixture(autouse=True)
def no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").engine.refusal = None


def serve(server: LiveServer, *arguments: str) -> Any:
    lengths = ("--input", "100", "--output", "8", "--duration", "0.5")
    return bench("serve", server.url, *lengths, *arguments)


def test_a_server_is_measured_at_each_rate(server: LiveServer, tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg"))
    result = serve(server, "--rate", "40,20", "--ttft-ms", "60000", "--tpot-ms", "60000", *LATE_IS_FINE, *files)
    assert result.exit_code == 0, result.output
    value = json.loads((tmp_path / "a.json").read_text())
    assert value["model"] == "fake" and value["goodput"] == {"rate": 40.0, "is_lower_bound": True}
    assert [(run["rate"], run["num_requests"], run["num_ok"]) for run in value["runs"]] == [(20, 10, 10), (40, 20, 20)]
    assert all(run["attainment"] == 1 and run["void"] == [] for run in value["runs"])
    assert all(0.8 < run["input_tokens_ratio"] < 1.2 for run in value["runs"])  # the fake counts bytes
    assert all(run["output_tokens_ratio"] == 1 for run in value["runs"])
    assert "goodput" in result.output and "20 of 20" in result.output
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_a_chat_server_in_bursts(server: LiveServer) -> None:
    bursts = ("--rate", "20", "--cv", "3", "--spread", "0", "--seed", "5")
    result = serve(server, "--chat", *bursts, "--json", "-", *LATE_IS_FINE)
    assert result.exit_code == 0, result.output
    [run] = json.loads(result.stdout)["runs"]
    assert run["num_ok"] == 10 and run["input_tokens_ratio"] == pytest.approx(1, abs=0.15)


def test_a_seed_repeats_the_prompts(server: LiveServer) -> None:
    def prompts() -> list[tuple[int, ...]]:
        server.engine.requests.clear()
        assert serve(server, "--rate", "10", "--seed", "5", *LATE_IS_FINE).exit_code == 0
        return sorted(request.prompt_token_ids for request in server.engine.requests)

    first = prompts()
    assert first == prompts() and len(set(first)) == len(first) == 7  # two of them to see how tokens are counted


def test_a_trace_is_replayed(server: LiveServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input_length,output_length\n0,60,3\n0.1,70,4\n0.2,80,5\n60,90,6\n")
    server.engine.requests.clear()
    result = bench("serve", server.url, "--trace", str(trace), "--rate", "15", "--duration", "0.1", *LATE_IS_FINE)
    assert result.exit_code == 0, result.output
    assert sorted(request.sampling.max_tokens or 0 for request in server.engine.requests[2:]) == [3, 4, 5]


def test_a_client_that_lagged_voids_the_run_loudly(server: LiveServer) -> None:
    result = serve(server, "--rate", "20", "--max-lag-ms", "0", "--json", "-")
    assert result.exit_code == 3
    assert "VOID at 20/s" in result.stderr and "every run is void" in result.stderr
    assert json.loads(result.stdout)["goodput"] is None


def test_refusals_are_counted_by_kind(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, seen = server.engine.submit, []

    async def full_after_the_probes(request: Any) -> Any:
        seen.append(request)
        if len(seen) > 2:
            server.engine.refusal = refusal(RefusalReason.QUEUE_FULL, "server.limits", 1, "Full.", retry_after_s=1.0)
        return await submit(request)

    monkeypatch.setattr(server.engine, "submit", full_after_the_probes)
    result = serve(server, "--rate", "20", *LATE_IS_FINE)
    assert result.exit_code == 0 and "10 failed: http 503" in result.stderr
    assert "none of the rates tried" in result.stderr


def test_only_this_machine_unless_allowed() -> None:
    result = bench("serve", "http://192.0.2.1:8000")
    assert result.exit_code == 1 and "--allow-remote" in result.output


def test_a_server_that_is_down() -> None:
    with live_server() as gone:
        url = gone.url
    result = bench("serve", url)
    assert result.exit_code == 1 and "is the server up?" in result.output


def test_a_first_request_that_is_refused(server: LiveServer) -> None:
    result = serve(server, "--rate", "5", "--model", "other")
    assert result.exit_code == 1 and "http 404" in result.output and "model_not_found" in result.output


@pytest.mark.parametrize("rate", ["", "0", "-1", "1,x", "nan", "inf", "1,,2"])
def test_rates_are_positive_numbers(rate: str) -> None:
    result = bench("serve", "http://127.0.0.1:1", "--rate", rate)
    message = " ".join(result.output.replace("│", " ").split())  # a frame may have wrapped it
    assert result.exit_code == 2 and "is not a list of requests a second" in message


def test_a_plot_that_cannot_be_written(server: LiveServer, tmp_path: Path) -> None:
    result = serve(server, "--rate", "10", "--plot", str(tmp_path / "no" / "a.svg"), *LATE_IS_FINE)
    assert result.exit_code == 1 and "cannot write" in result.output


# -- throughput and latency, over a fake executor --


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor(make_info(num_blocks=2048, max_batch_rows=64, max_batch_tokens=512))


@pytest.fixture(autouse=True)
def loaded(executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The parts of an engine that the commands find loaded."""
    module = ModuleType("headway.cli.loading")
    parts = SimpleNamespace(executor=executor, card=FakeEngine().card, report=REPORT, profiler=None)
    module.loaded_parts = lambda config: parts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "headway.cli.loading", module)
    return parts


def test_throughput_of_the_usual_works(executor: FakeExecutor) -> None:
    result = bench("throughput", "--rounds", "1", "--json", "-")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    works = [(work["batch"], work["prompt"], work["output"]) for work in value["works"]]
    assert works == [(1, 512, 1), (1, 32, 96), (8, 32, 48), (32, 32, 32), (32, 256, 64)]
    assert value["quantisation"] == "Q8" and value["kernels"] == "avx512"
    assert all(len(work["total_tokens_per_s"]) == 1 for work in value["works"])


def test_throughput_of_every_combination_given(executor: FakeExecutor) -> None:
    arguments = ("--batch", "2", "--batch", "3", "--prompt", "16", "--output", "4", "--output", "5", "--rounds", "2")
    result = bench("throughput", *arguments)
    assert result.exit_code == 0, result.output
    for work in ("2 x (16 in + 4 out)", "2 x (16 in + 5 out)", "3 x (16 in + 4 out)", "3 x (16 in + 5 out)"):
        assert work in result.stdout
    assert "of 2 rounds" in result.stdout


def test_latency(executor: FakeExecutor) -> None:
    result = bench("latency", "--prompt", "16", "--prompt", "40", "--output", "4", "--rounds", "2", "--json", "-")
    assert result.exit_code == 0, result.output
    works = json.loads(result.stdout)["works"]
    assert [(work["batch"], work["prompt"]) for work in works] == [(1, 16), (1, 40)]
    assert all(len(work["ttft_s"]) == 2 and work["token_s"]["p99"] > 0 for work in works)


@pytest.mark.parametrize("command", ["throughput", "latency"])
def test_a_profile_of_each_work(command: str, executor: FakeExecutor, loaded: SimpleNamespace) -> None:
    loaded.profiler = FakeProfiler(executor)
    arguments = ("--prompt", "16", "--prompt", "40", "--output", "4", "--rounds", "2", "--profile", "--json", "-")
    result = bench(command, *arguments)
    assert result.exit_code == 0, result.output
    profiles = [work["profile"] for work in json.loads(result.stdout)["works"]]
    assert [profile["rounds"] for profile in profiles] == [2, 2]
    assert all(profile["operations"][0]["label"] == "qkv" for profile in profiles)
    assert result.stderr.count("by operation") == 2 and result.stderr.count("Measured:") == 1


def test_a_backend_without_a_profile_says_so(executor: FakeExecutor) -> None:
    result = bench("throughput", "--profile", "--backend", "reference")
    assert result.exit_code == 1 and "--profile needs runtime.backend native" in result.output


def test_work_that_cannot_be(executor: FakeExecutor) -> None:
    assert "at least 1" in bench("latency", "--prompt", "0").output
    result = bench("throughput", "--prompt", "1000000", "--rounds", "1")
    assert result.exit_code == 1 and "error:" in result.output
