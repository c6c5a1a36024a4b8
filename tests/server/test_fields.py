import pytest

from headway.errors import InvalidRequest
from headway.server.fields import NEUTRAL, settle_fields
from headway.server.protocol import ChatRequest, CompletionRequest

ASKS_FOR_SOMETHING = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
    "best_of": 2,
    "suffix": "end",
    "store": True,
    "modalities": ["text", "audio"],
    "parallel_tool_calls": 1,
    "use_beam_search": 0,
    "prediction": {"type": "content", "content": "x"},
    "guided_json": {},
    "regex": "a+",
}


@pytest.mark.parametrize("name", sorted(ASKS_FOR_SOMETHING))
def test_a_known_field_that_is_not_supported_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        settle_fields({name: ASKS_FOR_SOMETHING[name]}, ChatRequest)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert name in caught.value.message


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_known_field_passes_when_it_asks_for_nothing(name: str) -> None:
    if name in ChatRequest.model_fields:
        return
    for value in (None, *NEUTRAL[name]):
        assert settle_fields({"n": 2, name: value}, ChatRequest) == {"n": 2}


def test_an_unknown_field_is_refused_even_when_null() -> None:
    for value in (None, 1):
        with pytest.raises(InvalidRequest) as caught:
            settle_fields({"temprature": value}, ChatRequest)
        assert (caught.value.param, caught.value.code) == ("temprature", "unknown_parameter")


def test_a_field_of_one_endpoint_is_not_one_of_the_other() -> None:
    assert settle_fields({"echo": True}, CompletionRequest) == {"echo": True}
    with pytest.raises(InvalidRequest, match="echo"):
        settle_fields({"echo": True}, ChatRequest)
