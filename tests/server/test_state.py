"""The folder and the databases of what outlives the process."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.server.state import Database, default_state_dir, state_folder

SCHEMA = "CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"


def add(text: str | None):
    return lambda db: db.execute("INSERT INTO notes (text) VALUES (?)", (text,))


def texts(db: sqlite3.Connection) -> list[str]:
    return [row["text"] for row in db.execute("SELECT text FROM notes ORDER BY id")]


def test_the_folder_is_the_platforms_unless_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_state_dir() == tmp_path / "state" / "headway"
    assert state_folder("") == tmp_path / "state" / "headway"
    own = state_folder(str(tmp_path / "own"))
    assert own.is_dir() and stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"server\.state_dir"):
        state_folder(str(tmp_path / "file" / "below"))


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    database = Database(tmp_path / "notes.sqlite", SCHEMA)
    asyncio.run(database.run(add("one")))
    database.close()
    assert Database(tmp_path / "notes.sqlite", SCHEMA).run_now(texts) == ["one"]
    assert stat.S_IMODE((tmp_path / "notes.sqlite").stat().st_mode) == 0o600


def test_work_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    database = Database(tmp_path / "notes.sqlite", SCHEMA)

    def half(db: sqlite3.Connection) -> None:
        add("one")(db)
        add(None)(db)

    with pytest.raises(sqlite3.IntegrityError):
        database.run_now(half)
    assert database.run_now(texts) == []


def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "notes.sqlite").write_text("hello " * 1000)
    with pytest.raises(ConfigError, match=r"notes\.sqlite"):
        Database(tmp_path / "notes.sqlite", SCHEMA)
