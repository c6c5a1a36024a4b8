import json

import pytest

from headway.errors import InvalidRequest
from headway.server.body import MAX_BRACKETS, MAX_DEPTH, parse_object


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":',
        b"",
        b"[]",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\\ud800"}',
        b'{"\\uDFFF": 1}',
        b'{"a": [["\\ud83e"]]}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":[' + b"[]," * MAX_BRACKETS + b"1]}",
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    ],
)
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("value", [{}, {"a": "é🦙", "b": [1, 2.5, None, True]}, {"a": "\ud83e\udd99"}])
def test_sound_json_is_read(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == json.loads(json.dumps(value))


def test_the_deepest_allowed_nesting_is_read() -> None:
    nested = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert "a" in parse_object(nested)
