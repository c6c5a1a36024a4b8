import json
import shlex

import pytest
from engines import REPORT

from fake_engine import FakeEngine
from fakes import LinearStepTimes
from headway.cli.serve import curl_line, objective_fact, print_start, server_url
from headway.config import ObjectiveConfig


@pytest.mark.parametrize(
    ("address", "url"),
    [(("127.0.0.1", 8000), "http://127.0.0.1:8000"), (("::1", 80, 0, 0), "http://[::1]:80")],
)
def test_urls(address: tuple[object, ...], url: str) -> None:
    assert server_url(address) == url


@pytest.mark.parametrize("has_chat", [True, False])
def test_the_curl_line_is_one_command_whatever_the_model_is_called(has_chat: bool) -> None:
    name = 'it\'s "odd" $HOME'
    line = curl_line(name, "http://127.0.0.1:8000", has_chat)
    words = shlex.split(line)
    assert words[0] == "curl" and words[1].endswith("/v1/chat/completions" if has_chat else "/v1/completions")
    assert words[2:4] == ["-H", "Content-Type: application/json"]
    assert json.loads(words[-1])["model"] == name


def test_the_start_says_what_is_served_and_where_the_memory_went(capsys: pytest.CaptureFixture[str]) -> None:
    print_start(FakeEngine("my[bold]model").card, REPORT, "50 ms a token", "http://127.0.0.1:8000", True)
    text = capsys.readouterr().out
    for fact in ("my[bold]model", "Q8", "98.4 MB", "5.0 MB", "2048 blocks of 16 = 32768 tokens", "512 tokens"):
        assert fact in text
    for fact in ("2 on 2 cores, avx512 kernels", "1.2 s", "http://127.0.0.1:8000"):
        assert fact in text
    assert any(line.startswith("curl ") for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())  # also where it goes into a file


def test_an_objective_is_shown_beside_what_steps_take_and_one_that_cannot_be_held_is_said_so():
    times = LinearStepTimes(step_s=0.010, token_s=0.001)
    steps = "a step takes 11.0 ms for one request, 74.0 ms for 64 (predicted)"
    fact = objective_fact(ObjectiveConfig(tpot_ms=50.0, ttft_ms=500.0), times, 64, 400)
    assert fact == f"50 ms a token; {steps}; first token within 500 ms"
    fact = objective_fact(ObjectiveConfig(tpot_ms=5.0), times, 64, 400)
    assert "cannot be held, at best 11.0 ms" in fact
    assert objective_fact(ObjectiveConfig(tpot_ms=0.0, ttft_ms=0.0), times, 64, 400) == (
        f"none for tokens; {steps}; none for the first token"
    )


def test_the_start_says_which_prompts_have_time_to_be_read():
    times = LinearStepTimes(step_s=0.010, token_s=0.001)
    fact = objective_fact(ObjectiveConfig(ttft_ms=100.0), times, 64, 400)
    assert fact.endswith("first token within 100 ms for prompts up to 90 tokens, alone (predicted)")
