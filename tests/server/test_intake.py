import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fake_engine import CONTEXT, FakeChatTemplate, FakeEngine, FakeTokenizer
from headway.config import LimitsConfig, SamplingDefaults
from headway.errors import HeadwayError, InvalidRequest, PromptTooLong
from headway.server.body import OFF_LOOP_SIZE
from headway.server.errors import ApiError
from headway.server.intake import Intake, Job, parse_prompts
from headway.server.protocol import ChatRequest, CompletionRequest

USER = {"role": "user", "content": "hi"}
LIMITS = LimitsConfig(max_n=4, max_prompts=3, max_choices=6, max_logprobs=5, max_stops=2, max_stop_chars=4)


def chat(engine: FakeEngine | None = None, defaults: SamplingDefaults | None = None, **fields: Any) -> Job:
    intake = Intake.over(engine or FakeEngine(), LIMITS, defaults or SamplingDefaults())
    return asyncio.run(intake.chat_job(ChatRequest.model_validate({"messages": [USER], **fields}), "label"))


def complete(engine: FakeEngine | None = None, **fields: Any) -> Job:
    intake = Intake.over(engine or FakeEngine(), LIMITS, SamplingDefaults())
    return asyncio.run(intake.completion_job(CompletionRequest.model_validate({"prompt": "hi", **fields}), "label"))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_every_form_of_prompt(prompt: Any, expected: list[Any]) -> None:
    assert parse_prompts(prompt) == expected


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], ["a", ""], [[]], [[1], []], 5, None, {"a": 1}, [True], [1, "a"], [[1, 2.0]], [[True]], [[[1]]]],
)
def test_bad_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_prompts(prompt)
    assert caught.value.param == "prompt"


def test_all_fields_reach_the_engine() -> None:
    job = chat(
        max_completion_tokens=7,
        temperature=0.25,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=11,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"65": -100, "7": 2.5},
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[9],
        stop=["x", "y"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=True,
        top_logprobs=2,
    )
    (sequence,) = job.sequences
    sampling = sequence.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.25, 0.5, 3)
    assert (sampling.min_p, sampling.seed, sampling.repetition_penalty) == (0.1, 11, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.logit_bias == ((65, -100.0), (7, 2.5))
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids, sampling.logprobs) == (2, True, (9,), 2)
    assert (sequence.stop, sequence.include_stop, sequence.skip_special_tokens) == (("x", "y"), True, False)
    assert sequence.label == "label"


def test_choices_and_prompts_are_numbered_prompt_first_and_draw_apart() -> None:
    job = complete(prompt=["a", "b"], n=2, seed=5)
    assert [(s.prompt_token_ids[-1], s.sampling.seed) for s in job.sequences] == [(97, 5), (97, 6), (98, 5), (98, 6)]


def test_without_a_seed_none_is_made_up_here() -> None:
    assert [s.sampling.seed for s in complete(n=2).sequences] == [None, None]


def test_defaults_request_then_server_then_model_then_neutral() -> None:
    engine = FakeEngine()
    engine.generation_defaults = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    defaults = SamplingDefaults(temperature=0.2, top_k=0)
    sampling = chat(engine, defaults, temperature=0.0).sequences[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty, sampling.top_p) == (0.0, 0, 1.1, 1.0)
    assert chat(engine, defaults).sequences[0].sampling.temperature == 0.2
    assert chat(engine).sequences[0].sampling.temperature == 0.7


def test_max_tokens_in_either_spelling() -> None:
    assert chat().sequences[0].sampling.max_tokens is None
    assert chat(max_tokens=3).sequences[0].sampling.max_tokens == 3
    assert chat(max_tokens=3, max_completion_tokens=3).sequences[0].sampling.max_tokens == 3
    with pytest.raises(InvalidRequest, match="differ"):
        chat(max_tokens=3, max_completion_tokens=4)


@pytest.mark.parametrize(
    "bias",
    [
        *({key: 1} for key in ("AI", "", "-1", "1.0", "²", " 1", "9" * 12)),
        *({"1": value} for value in ("x", True, None, float("inf"))),
        [1],
        "1",
    ],
)
def test_bad_logit_bias_is_refused(bias: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(logit_bias=bias)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "param", "numbers"),
    [
        ({"n": 5}, "n", ("5", "4")),
        ({"prompt": ["a"] * 4}, "prompt", ("4", "3")),
        ({"prompt": ["a"] * 3, "n": 3}, "n", ("9", "6")),
        ({"logprobs": 6}, "logprobs", ("6", "5")),
        ({"stop": ["a", "b", "c"]}, "stop", ("3", "2")),
        ({"stop": "abcde"}, "stop", ("5", "4")),
        ({"stop_token_ids": [1, 2, 3]}, "stop_token_ids", ("3", "2")),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", ("1025", "1024")),
    ],
)
def test_limits_are_refused_with_the_numbers_and_the_setting(
    fields: dict[str, Any], param: str, numbers: tuple[str, str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        complete(**fields)
    assert caught.value.param == param
    assert all(number in caught.value.message for number in numbers)
    assert "server.limits." in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_contradictions_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_echo_with_logprobs_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="echo"):
        complete(echo=True, logprobs=0)


def test_another_model_is_never_answered() -> None:
    assert chat(model="fake").sequences
    with pytest.raises(ApiError) as caught:
        chat(model="gpt-4o")
    assert (caught.value.status, caught.value.error["code"]) == (404, "model_not_found")


def test_a_base_model_has_no_chat() -> None:
    engine = FakeEngine()
    engine.chat_template = None
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        chat(engine)


def test_an_answer_is_opened_unless_the_last_message_goes_on() -> None:
    def prompt(**fields: Any) -> str:
        return bytes(chat(**fields).sequences[0].prompt_token_ids[1:]).decode()

    assert prompt() == "[user]hi\n[assistant]"
    assert prompt(continue_final_message=True) == "[user]hi"
    assert prompt(add_generation_prompt=False) == "[user]hi\n"


@pytest.mark.parametrize("length", [1, OFF_LOOP_SIZE, OFF_LOOP_SIZE + 1])
def test_long_work_is_done_off_the_event_loop(length: int) -> None:
    engine = FakeEngine()
    intake = replace(Intake.over(engine, LIMITS, SamplingDefaults()), max_prompt_chars=10_000)

    class Encoder(FakeTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            used_in.append(threading.current_thread())
            return super().encode(text)

        def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            used_in.append(threading.current_thread())
            return super().decode(token_ids)

    used_in: list[threading.Thread] = []
    engine.tokenizer = Encoder()
    assert len(asyncio.run(intake.encode("x" * length))) == length + 1
    assert asyncio.run(intake.decode([120] * length, True)) == "x" * length
    assert [thread is threading.main_thread() for thread in used_in] == [length <= OFF_LOOP_SIZE] * 2


def test_a_template_is_never_rendered_on_the_event_loop() -> None:
    class Template(FakeChatTemplate):
        def prompt_ids(self, *args: Any, **kwargs: Any) -> list[int]:
            used_in.append(threading.current_thread())
            return super().prompt_ids(*args, **kwargs)

    used_in: list[threading.Thread] = []
    engine = FakeEngine()
    engine.chat_template = Template()
    chat(engine)
    (thread,) = used_in
    assert thread is not threading.main_thread()


def test_seeds_of_choices_wrap_at_the_end_of_their_range() -> None:
    seeds = [sequence.sampling.seed for sequence in chat(seed=2**64 - 1, n=3).sequences]
    assert seeds == [2**64 - 1, 0, 1]
    assert [sequence.sampling.seed for sequence in chat(seed=-1, n=2).sequences] == [-1, 0]
    assert chat(seed=2**64, n=2).sequences[0].sampling.seed == 2**64  # for the engine to refuse


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    class Untouched(FakeTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("tokenised")

    engine = FakeEngine()
    engine.tokenizer = Untouched()
    text = "x" * (CONTEXT * 3 + 1)  # the longest token has 3 bytes
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (complete, {"prompt": text}),
        (chat, {"messages": [{"role": "user", "content": text}]}),
        (chat, {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}),
    ]
    for ask, fields in cases:
        with pytest.raises(PromptTooLong) as caught:
            ask(engine, **fields)
        assert f"{CONTEXT} tokens of context hold at most {CONTEXT * 3}" in caught.value.message


def test_errors_name_no_prompt() -> None:
    for fields in ({"prompt": "secret", "n": 99}, {"prompt": ["secret", 5]}, {"prompt": ["secret"] * 10}):
        with pytest.raises(HeadwayError) as caught:
            complete(**fields)
        assert "secret" not in str(caught.value)
