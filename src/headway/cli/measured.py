"""How a measurement is handed over: a table for a person, JSON for a program."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from headway.cli.terminal import messages, output
from headway.errors import BenchError

STANDARD_OUTPUT = Path("-")
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON too; - is standard output.")
]


def show(table: RenderableType, value: dict[str, Any], json_file: Path | None) -> None:
    """The table, or group of them, goes to standard output, or to standard error when the JSON has taken its place."""
    text = json.dumps(value, indent=1) + "\n"
    if json_file == STANDARD_OUTPUT:
        messages().print(table)
        typer.echo(text, nl=False)
        return
    output().print(table)
    if json_file is not None:
        write_file(json_file, text)


def write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error}") from error
