import sys
from typing import Any

import pytest
from engines import loading_module
from typer.testing import CliRunner

from fake_engine import ANSWER, FakeEngine, refusal
from headway.cli.app import app
from headway.core.admission import RefusalReason


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setitem(sys.modules, "headway.cli.loading", loading_module(engine))
    return engine


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(app, ["run", "fake", *arguments], **options)


def prompt_of(engine: FakeEngine) -> str:
    return bytes(engine.requests[-1].prompt_token_ids[1:]).decode()


def test_the_answer_goes_to_standard_output(engine: FakeEngine) -> None:
    result = run("hi")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n")
    assert prompt_of(engine) == "[user]hi\n[assistant]"


def test_the_prompt_may_come_from_standard_input(engine: FakeEngine) -> None:
    assert run(input="from\na pipe").exit_code == 0
    assert "from\na pipe" in prompt_of(engine)


def test_options_reach_the_engine(engine: FakeEngine) -> None:
    engine.generation_defaults = {"top_p": 0.5, "temperature": 0.3}
    run("hi", "--max-tokens", "3", "--temperature", "0", "--seed", "9", "--system", "Be brief.")
    sampling = engine.requests[-1].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.top_p) == (3, 0.0, 9, 0.5)
    assert prompt_of(engine).startswith("[system]Be brief.\n[user]hi")
    run("hi", "--set", "server.sampling.temperature=0.7")
    assert engine.requests[-1].sampling.temperature == 0.7


def test_a_base_model_goes_on_from_the_text(engine: FakeEngine) -> None:
    engine.chat_template = None
    assert run("Once upon").exit_code == 0
    assert prompt_of(engine) == "Once upon"


@pytest.mark.parametrize("arguments", [("",), (" \n",)])
def test_an_empty_prompt_is_refused(engine: FakeEngine, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1 and "prompt is empty" in result.output
    assert engine.requests == []


def test_a_refusal_ends_with_its_message(engine: FakeEngine) -> None:
    engine.refusal = refusal(RefusalReason.TOO_LONG, "model.max_context", 9, "The prompt is too long.")
    result = run("hi")
    assert result.exit_code == 1 and "The prompt is too long." in result.output
