import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from headway.cli.options import ENGINE_SETTINGS, SERVER_SETTINGS
from headway.config import Config, load_config
from headway.errors import ConfigError


def test_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text("[server]\nport = 9000\nhost = 'localhost'\n[server.sampling]\ntemperature = 1\n")
    config = load_config(file, {"server.port": 9001, "model.name": "x"})
    assert (config.server.port, config.server.host, config.model.name) == (9001, "localhost", "x")
    assert config.server.sampling.temperature == 1.0 and config.server.sampling.top_k is None
    assert config.scheduler == Config().scheduler


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server.port", "80"),
        ("server.port", True),
        ("server.port", None),
        ("server.sampling.top_k", 1.5),
        ("server.sampling.temperature", "hot"),
        ("server.sampling.temperature", True),
        ("server", 5),
        ("server.prot", 5),
        ("model.accept_licence", 1),
        ("runtime.threads", -1),
        ("server.drain_s", float("nan")),
        ("server.keep_alive_s", float("inf")),
        ("server.sampling.temperature", -0.5),
        ("server.drain_s", -1),
        ("server.limits.max_n", -1),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load_config(None, {name: value})


def test_there_are_at_most_60_settings_besides_the_bounds_of_one_request() -> None:
    chosen = [name for name, _ in settings(Config()) if not name.startswith("server.limits.")]
    assert len(chosen) <= 60


def test_the_page_lists_every_setting_with_its_default_and_its_flag() -> None:
    flags = {setting.name: f"`{setting.flag}`" for setting in ENGINE_SETTINGS + SERVER_SETTINGS} | {
        "model.name": "MODEL"
    }
    expected = [(name, toml(default), flags.get(name, "")) for name, default in settings(Config())]
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \| (.*?) ?\| \S.* \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted(expected)


def settings(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of each setting."""
    for field in fields(part):
        value = getattr(part, field.name)
        key = field.metadata.get("key", field.name)
        if get_origin(field.type) is tuple:
            yield from settings(get_args(field.type)[0](), f"{prefix}{key}.")
        elif is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + key, value


def toml(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[server")
    for path in (broken, tmp_path / "missing.toml"):
        with pytest.raises(ConfigError, match=path.name):
            load_config(path)
