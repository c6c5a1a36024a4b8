from pathlib import Path

import pytest

from headway.errors import CheckpointError
from headway.model.strict_json import parse_json, read_json


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is there twice"),
        (b"[1]", "a JSON object is expected"),
        (b"null", "a JSON object is expected"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "not valid JSON"),
    ],
)
def test_what_is_not_one_sound_object_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{problem}"):
        parse_json(data, "config.json")


def test_many_keys_cost_little() -> None:
    data = b"{" + b",".join(b'"%d":0' % i for i in range(200_000)) + b',"0":1}'
    with pytest.raises(CheckpointError, match="'0' is there twice"):
        parse_json(data, "config.json")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: No such file"):
        read_json(path)
    path.write_text('{"a": "é"}', encoding="utf-8")
    assert read_json(path) == {"a": "é"}
    with pytest.raises(CheckpointError, match="larger than"):
        read_json(path, max_bytes=4)
