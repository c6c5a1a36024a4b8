"""Options that are settings: each flag names one dotted setting of ``headway.config``, said once in a table here.

A flag beats its environment variable, which beats the file given with ``--config``, which beats the default.
"""

import inspect
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from headway.cli.terminal import error_exit
from headway.config import Config, load_config
from headway.errors import ConfigError

Command = Callable[..., None]
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag. ``kind`` is its type, or a function from its text to a value."""

    name: str  # dotted
    flag: str
    kind: Any
    help: str
    metavar: str | None = None

    @property
    def environment_variable(self) -> str:
        return "HEADWAY_" + self.flag.removeprefix("--").replace("-", "_").upper()

    def parameter(self) -> inspect.Parameter:
        parser = self.kind if inspect.isfunction(self.kind) else None
        option = typer.Option(
            None,
            self.flag,
            envvar=self.environment_variable,
            help=self.help,
            parser=parser,
            metavar=self.metavar,
            show_default=False,
        )
        annotation = self.kind if parser is None else Any
        return _keyword(_python_name(self.flag), annotation | None if parser is None else annotation, option)


def parse_bytes(text: str) -> int:
    """``512M``, ``2GiB``, ``1073741824``: units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r} is not an amount of memory: write 512M or 2G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


ENGINE_SETTINGS = (
    Setting("model.cache_dir", "--cache", str, "Where models are kept."),
    Setting("model.accept_licence", "--accept-licence", bool, "Accept the model's licence."),
    Setting("model.max_context", "--max-context", int, "Longest sequence in tokens; 0: what the model was made for."),
    Setting("cache.memory_bytes", "--kv-memory", parse_bytes, "Memory for the KV cache: 512M, 2G.", "SIZE"),
    Setting("runtime.threads", "--threads", int, "Threads that compute; 0: one for each core."),
    Setting("runtime.backend", "--backend", str, "native, or reference (slow, to check against)."),
)
SERVER_SETTINGS = (
    Setting("server.host", "--host", str, "Address to listen on."),
    Setting("server.port", "--port", int, "Port to listen on; 0: any free one."),
)
CONFIG_FILE = typer.Option(None, "--config", envvar="HEADWAY_CONFIG", help="A TOML file of settings.")
OTHER_SETTINGS = typer.Option(None, "--set", metavar="NAME=VALUE", help="Any setting: scheduler.max_batch_rows=32.")


def configured(*settings: Setting, model_required: bool = False) -> Callable[[Command], Command]:
    """Gives a command its ``config``: a MODEL argument, ``--config``, ``--set`` and ``settings`` take its place.

    A Headway error ends the command with its message.
    """

    def decorate(command: Command) -> Command:
        own = [p.replace(kind=p.KEYWORD_ONLY) for p in _parameters(command) if p.name != "config"]
        parameters = [
            _keyword("model", str if model_required else str | None, _model_argument(model_required)),
            *own,
            _keyword("config_file", Path | None, CONFIG_FILE),
            _keyword("other_settings", list[str] | None, OTHER_SETTINGS),
            *(setting.parameter() for setting in settings),
        ]

        @wraps(command)
        def with_config(**arguments: Any) -> None:
            flags = {setting.name: arguments.pop(_python_name(setting.flag)) for setting in settings}
            flags["model.name"] = arguments.pop("model")
            file, others = arguments.pop("config_file"), arguments.pop("other_settings") or []
            with error_exit():
                command(config=resolve_config(file, flags, others), **arguments)

        with_config.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_config.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_config

    return decorate


def _parameters(command: Command) -> list[inspect.Parameter]:
    return list(inspect.signature(command).parameters.values())


def _model_argument(required: bool) -> Any:
    help_text = "A catalogue name, hf:org/name, hf:org/name@revision, or a path."
    return typer.Argument(... if required else None, help=help_text, show_default=False)


def resolve_config(file: Path | None, flags: dict[str, Any], assignments: list[str]) -> Config:
    """The file, then ``--set`` assignments, then flags; a flag that is None was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return load_config(file, dict(map(parse_assignment, assignments)) | given)


def parse_assignment(text: str) -> tuple[str, Any]:
    """``name=value`` with the value as TOML has it; text needs no quotes."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set takes NAME=VALUE, such as server.port=8080, not {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _python_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
