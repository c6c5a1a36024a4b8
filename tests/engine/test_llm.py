import pytest

from fakes import WAIT_S, FakeExecutor, pause
from headway.core.request import FinishReason, SamplingParams
from headway.engine import llm as llm_module
from headway.engine.llm import LLM
from headway.errors import ConfigError, EngineStopped, InvalidRequest, RequestRefused
from text_fakes import EOS, echo_executor, ids, make_parts


@pytest.fixture
def executor() -> FakeExecutor:
    return echo_executor(num_blocks=100)


@pytest.fixture
def llm(executor):
    with LLM.from_parts(make_parts(executor)) as llm:
        yield llm


def test_prompts_in_any_form_are_answered_in_order(llm):
    assert [answer.text for answer in llm.generate("one")] == ["one"]
    assert [answer.text for answer in llm.generate(["one", "two 🦙"])] == ["one", "two 🦙"]
    assert [answer.text for answer in llm.generate(list(ids("ids")))] == ["ids"]
    assert [answer.text for answer in llm.generate(["text", ids("ids")])] == ["text", "ids"]
    assert llm.generate([]) == []


def test_more_prompts_than_fit_at_once_all_end(llm):
    texts = [f"prompt number {index}" for index in range(200)]
    assert [answer.text for answer in llm.generate(texts)] == texts


def test_an_answer_has_its_ids_usage_and_end(llm):
    (answer,) = llm.generate("ab", SamplingParams(logprobs=1))
    assert (answer.prompt_token_ids, answer.token_ids) == (ids("ab"), (*ids("ab"), EOS))
    assert (answer.finish_reason, answer.stop_reason, answer.error) == (FinishReason.STOP, None, None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 3)
    assert [token.text for token in answer.tokens] == ["a", "b"]


@pytest.mark.parametrize("stop", ["two", ["two"]])
def test_stop_strings_end_the_text_and_the_work(stop):
    with LLM.from_parts(make_parts(echo_executor(pause, num_blocks=600))) as llm:
        (answer,) = llm.generate("one two three", SamplingParams(ignore_eos=True, max_tokens=2000), stop=stop)
        assert (answer.text, answer.stop_reason) == ("one ", "two")
        assert llm._engine.drain(WAIT_S)
        assert llm._engine.stats().finished == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_sampling_is_one_for_all_or_one_each_or_the_models_own(executor):
    parts = make_parts(executor, {"temperature": 0.25, "top_k": 7})
    with LLM.from_parts(parts) as llm:
        assert [len(a.token_ids) for a in llm.generate(["abc", "def"], SamplingParams(max_tokens=2))] == [2, 2]
        each = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)]
        assert [len(a.token_ids) for a in llm.generate(["abc", "def"], each)] == [1, 3]
        with pytest.raises(InvalidRequest, match="2 prompts but 1 sampling_params"):
            llm.generate(["abc", "def"], each[:1])
        llm.generate("own")
    own = executor.batches[-1].rows[0].request_id
    sampling = next(new.sampling for batch in executor.batches for new in batch.admitted if new.request_id == own)
    assert (sampling.temperature, sampling.top_k) == (0.25, 7)


def test_chat_takes_one_conversation_or_several(llm):
    hello, bye = [{"role": "user", "content": "hello"}], [{"role": "user", "content": "bye"}]
    assert [answer.text for answer in llm.chat(hello)] == ["hello"]
    assert [answer.text for answer in llm.chat([hello, hello + bye])] == ["hello", "hello|bye"]


def test_a_model_without_a_template_says_so(executor):
    parts = make_parts(executor)
    object.__setattr__(parts, "chat_template", None)
    with (
        LLM.from_parts(parts) as llm,
        pytest.raises(InvalidRequest, match="echo has no chat template"),
    ):
        llm.chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("prompts", "error"),
    [(["ok", ""], InvalidRequest), (["ok", [9999]], InvalidRequest), (["ok", "x" * 1000], RequestRefused)],
)
def test_a_prompt_that_cannot_be_taken_stops_the_call_and_leaves_nothing_running(llm, prompts, error):
    with pytest.raises(error):
        llm.generate(prompts)
    assert llm.generate("still fine")[0].text == "still fine"
    assert llm._engine.drain(WAIT_S)
    assert llm._engine.stats().kv_blocks["used"] == 0


def test_an_answer_that_fails_says_why_and_the_others_are_whole(monkeypatch, llm, executor):
    monkeypatch.setattr(llm_module, "new_core_request", failing_first(llm_module.new_core_request, executor))
    failed, fine = llm.generate(["fails", "fine"])
    assert failed.finish_reason is FinishReason.ERROR and "row of" in failed.error
    assert (fine.text, fine.error) == ("fine", None)


def failing_first(make, executor):
    def wrapped(request, eos_token_ids):
        core_request = make(request, eos_token_ids)
        if not executor.errors:
            executor.errors[core_request.request_id] = 7
        return core_request

    return wrapped


def test_an_interrupted_call_leaves_nothing_running(monkeypatch, llm):
    def interrupt(self, output):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm_module._Answer, "take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a long answer " * 10] * 3)
    assert llm.generate("next")[0].text == "next"
    assert llm._engine.drain(WAIT_S)
    assert llm._engine.stats().kv_blocks["used"] == 0


def test_a_closed_llm_says_so(llm):
    llm.close()
    with pytest.raises(EngineStopped, match="shut down"):
        llm.generate("x")


def test_progress_is_shown_on_request(llm, capsys):
    llm.generate(["a", "b"], progress=True)
    assert "2/2" in capsys.readouterr().out
    llm.generate(["a", "b"])
    assert capsys.readouterr().out == ""


def test_settings_go_by_their_plain_names():
    assert llm_module._dotted({"threads": 2, "max_context": 64}) == {"runtime.threads": 2, "model.max_context": 64}
    with pytest.raises(ConfigError, match="unknown setting 'treads'; known here"):
        llm_module._dotted({"treads": 2})
