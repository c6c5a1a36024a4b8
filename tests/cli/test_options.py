from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headway.cli.options import ENGINE_SETTINGS, SERVER_SETTINGS, configured, parse_assignment, parse_bytes
from headway.config import Config, load_config
from headway.errors import ConfigError


class Command:
    """A command with every setting; remembers the configuration it was given."""

    def __init__(self) -> None:
        self.config = Config()
        self.extra = 0
        app = typer.Typer()

        @app.command()
        @configured(*SERVER_SETTINGS, *ENGINE_SETTINGS)
        def command(extra: int = 0, *, config: Config) -> None:
            self.config, self.extra = config, extra

        self._app = app

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> Any:
        return CliRunner().invoke(self._app, list(arguments), env=env)


@pytest.fixture
def command() -> Command:
    return Command()


def test_without_flags_the_defaults_stand(command: Command) -> None:
    assert command.run().exit_code == 0
    assert command.config == Config()


@pytest.mark.parametrize("setting", [*SERVER_SETTINGS, *ENGINE_SETTINGS], ids=lambda setting: setting.flag)
def test_every_flag_and_variable_is_its_setting(command: Command, setting: Any) -> None:
    text, value = {str: ("text", "text"), int: ("7", 7), bool: ("true", True)}.get(setting.kind, ("1K", 1024))
    expected = load_config(None, {setting.name: value})
    assert command.run(setting.flag, *([] if setting.kind is bool else [text])).exit_code == 0
    assert command.config == expected != Config()
    assert command.run(env={setting.environment_variable: text}).exit_code == 0
    assert command.config == expected


def test_model_and_the_commands_own_options(command: Command) -> None:
    assert command.run("a/path", "--extra", "3").exit_code == 0
    assert (command.config.model.name, command.extra) == ("a/path", 3)


def test_flag_then_variable_then_set_then_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text("[server]\nport = 1\n")
    from_file = ("--config", str(file))
    with_set = (*from_file, "--set", "server.port=2")
    variable = {"HEADWAY_PORT": "3"}
    for port, arguments, env in (
        (1, from_file, {}),
        (2, with_set, {}),
        (3, with_set, variable),
        (4, (*with_set, "--port", "4"), variable),
        (1, (), {"HEADWAY_CONFIG": str(file)}),
    ):
        assert command.run(*arguments, env=env).exit_code == 0
        assert command.config.server.port == port


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=5", ("a.b", 5)),
        ("a.b = true", ("a.b", True)),
        ("a.b=0.5", ("a.b", 0.5)),
        ("a.b=plain text", ("a.b", "plain text")),
        ('a.b="5"', ("a.b", "5")),
        ("a.b=", ("a.b", "")),
        ("a.b=x=y", ("a.b", "x=y")),
    ],
)
def test_assignments(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["a.b", "=5", ""])
def test_bad_assignments(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("1K", 1024), ("1.5k", 1536), ("512MiB", 1 << 29), ("2 GB", 2 << 30), ("1T", 1 << 40)],
)
def test_amounts_of_memory(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "many"])
def test_bad_amounts_of_memory(command: Command, text: str) -> None:
    assert command.run("--kv-memory", text).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [("--set", "server.prot=1"), ("--set", "server.port=high"), ("--config", "missing.toml"), ("--set", "nonsense")],
)
def test_a_wrong_setting_ends_the_command_with_a_message(command: Command, arguments: tuple[str, ...]) -> None:
    result = command.run(*arguments)
    assert result.exit_code == 1
    assert "error:" in result.output and "Traceback" not in result.output
