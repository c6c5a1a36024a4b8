import copy

import pytest

from headway.engine.messages import template_messages
from headway.errors import InvalidRequest


def call(arguments: object, **function: object) -> dict:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments, **function}}


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]
    assert template_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb "}]


def test_null_and_missing_content_are_the_same():
    null, missing = template_messages([{"role": "assistant", "content": None}, {"role": "assistant"}])
    assert null == missing == {"role": "assistant", "content": None}


def test_null_fields_are_left_out():
    message = {"role": "assistant", "content": "a", "name": None, "tool_calls": None}
    assert template_messages([message]) == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ("{}", {})],
)
def test_arguments_of_tool_calls_become_objects(given, expected):
    message = {"role": "assistant", "content": None, "tool_calls": [call(given)]}
    assert template_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == expected


def test_the_originals_are_untouched():
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [call("{}")]}]
    before = copy.deepcopy(messages)
    template_messages(messages)
    assert messages == before


def assistant(**fields: object) -> dict:
    return {"role": "assistant", "content": None, **fields}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (assistant(tool_calls=[call("{")]), "messages[1].tool_calls[0].function.arguments"),
        (assistant(tool_calls=[call("{}"), call("[1]")]), "messages[1].tool_calls[1].function.arguments"),
        (assistant(tool_calls=[call("[" * 100_000)]), "messages[1].tool_calls[0].function.arguments"),
        (assistant(tool_calls=[call(7)]), "messages[1].tool_calls[0].function.arguments"),
        (assistant(tool_calls=[call("{}", name=None)]), "messages[1].tool_calls[0].function"),
        (assistant(tool_calls=[{}]), "messages[1].tool_calls[0].function"),
        (assistant(tool_calls={}), "messages[1].tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0]"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": 5, "content": "a"}, "messages[1].role"),
        ({"content": "a"}, "messages[1].role"),
        ("hello", "messages[1]"),
    ],
)
def test_what_no_template_can_take_is_refused_by_name(message, param):
    with pytest.raises(InvalidRequest) as caught:
        template_messages([{"role": "user", "content": "a"}, message])
    assert caught.value.param == param


def test_no_messages_are_refused():
    with pytest.raises(InvalidRequest, match="at least one"):
        template_messages([])
