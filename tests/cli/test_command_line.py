import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headway import __version__
from headway.cli.app import app

COMMANDS = ["serve", "run", "chat", "models"]


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"headway {__version__}\n"
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    if command != "models":
        assert "hf:org/name" in result.stdout


def test_help_loads_nothing_heavy() -> None:
    heavy = ("numpy", "fastapi", "uvicorn", "pydantic", "tokenizers", "prometheus_client", "jinja2")
    code = f"import sys, headway.cli.app; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
