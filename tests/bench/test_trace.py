from pathlib import Path

import pytest

from headway.bench.trace import read_trace
from headway.bench.workload import PlannedRequest
from headway.errors import ConfigError


def trace(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


EXPECTED = [PlannedRequest(0.0, 100, 20), PlannedRequest(1.5, 7, 3)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "timestamp,input_length,output_length\n10,100,20\n11.5,7,3\n"),
        ("a.csv", "timestamp,input_length,output_length\n11.5,7,3\n10,100,20\n"),  # put in order
        ("a.csv", "﻿TIMESTAMP,ContextTokens,GeneratedTokens\r\n10,100,20\r\n11.5,7,3\r\n"),
        ("a.csv", "Timestamp,Model,Request tokens,Response tokens\n0,x,100,20\n1.5,x,7,3\n"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,100,20\n"
            "2023-11-16 18:15:47.5000000,7,3\n",
        ),
        (
            "a.jsonl",
            '{"timestamp": 3, "input_length": 100, "output_length": 20, "hash_ids": [1]}\n\n'
            '{"timestamp": 4.5, "input_length": 7, "output_length": 3}\n',
        ),
    ],
)
def test_known_layouts(tmp_path: Path, name: str, text: str) -> None:
    assert read_trace(trace(tmp_path, name, text)) == EXPECTED


HEAD = "timestamp,input_length,output_length\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "no requests"),
        ("a.csv", HEAD, "no requests"),
        ("a.csv", "when,input_length,output_length\n1,2,3\n", "line 2: no timestamp .*found when, input_length"),
        ("a.csv", HEAD + "1,2,3\n2,2\n", "line 3: no output_length"),
        ("a.csv", HEAD + "soon,2,3\n", "line 2: 'soon' is neither"),
        ("a.csv", HEAD + "nan,2,3\n", "line 2: 'nan' is not a moment"),
        ("a.csv", HEAD + "1,0,3\n", "line 2: '0' is not a number of tokens"),
        ("a.csv", HEAD + "1,2,-1\n", "line 2: '-1' is not a number of tokens"),
        ("a.csv", HEAD + "1,2.5,1\n", "line 2: '2.5' is not a number of tokens"),
        ("a.jsonl", "{}\n", "line 1: no timestamp"),
        ("a.jsonl", "[1]\n", "line 1: each line must be a JSON object"),
        ("a.jsonl", "{\n", "line 1: not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(trace(tmp_path, name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(path)
