"""Recorded arrivals: a CSV or JSONL file with a moment, an input length and an output length on each line."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.bench.workload import PlannedRequest
from headway.errors import ConfigError

# Names in published traces, lower case, with spaces as underscores.
TIME_COLUMNS = ("timestamp", "arrived_at", "arrival_time", "time")
INPUT_COLUMNS = ("input_length", "input_tokens", "prompt_tokens", "contexttokens", "request_tokens")
OUTPUT_COLUMNS = ("output_length", "output_tokens", "completion_tokens", "generatedtokens", "response_tokens")


def read_trace(path: Path) -> list[PlannedRequest]:
    """In order of time, the first at 0. ConfigError names the line that cannot be read."""
    requests = [_request(row, f"{path}, line {number}") for number, row in _rows(path)]
    if not requests:
        raise ConfigError(f"{path} holds no requests")
    requests.sort(key=lambda request: request.at_s)
    first = requests[0].at_s
    return [PlannedRequest(r.at_s - first, r.num_input_tokens, r.num_output_tokens) for r in requests]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() in (".jsonl", ".ndjson"):
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield number, _named(_json_object(line, f"{path}, line {number}"))
            else:
                reader = csv.DictReader(file)
                for row in reader:
                    yield reader.line_num, _named(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error


def _json_object(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: each line must be a JSON object")
    return row


def _named(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {str(name).strip().lower().replace(" ", "_"): value for name, value in row.items()}


def _request(row: Mapping[str, Any], where: str) -> PlannedRequest:
    return PlannedRequest(
        _seconds(_value(row, TIME_COLUMNS, where), where),
        _tokens(_value(row, INPUT_COLUMNS, where), where),
        _tokens(_value(row, OUTPUT_COLUMNS, where), where),
    )


def _value(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    for name in names:
        if row.get(name) is not None:
            return str(row[name])
    raise ConfigError(f"{where}: no {names[0]} (known names: {', '.join(names)}); found {', '.join(row) or 'nothing'}")


def _seconds(text: str, where: str) -> float:
    """A number of seconds, or a date and time."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise ConfigError(f"{where}: {text!r} is neither seconds nor a date and time") from None
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {text!r} is not a moment")
    return value


def _tokens(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigError(f"{where}: {text!r} is not a number of tokens (1 or more): leave the line out")
    return value
