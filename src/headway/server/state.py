"""What outlives the process: one folder, with a SQLite database for each kind of thing that is kept in it."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.errors import ConfigError

T = TypeVar("T")


def default_state_dir() -> Path:
    """The platform's folder for state: $XDG_STATE_HOME or ~/.local/state on Linux, Application Support on macOS."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "headway"
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "headway"


def state_folder(state_dir: str) -> Path:
    """The folder as configured (empty: the platform's), made where it is missing, for its owner alone.

    Raises ConfigError where it cannot be made.
    """
    folder = Path(state_dir).expanduser() if state_dir else default_state_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder} (setting server.state_dir): {error}") from error
    return folder


class Database:
    """One SQLite file and the one connection to it; each ``run`` is a transaction, one at a time.

    ``schema`` is run at every opening, so it only makes what is missing. A transaction that ``run`` has returned from
    survives the end of the process at any time.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self._lock = threading.Lock()
        try:
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, check_same_thread=False, timeout=5)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.executescript(schema)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot use the database {path} (setting server.state_dir): {error}") from error
        self._connection.row_factory = sqlite3.Row

    def run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """``work`` as one transaction, in the caller's thread. Rolled back where it raises."""
        with self._lock, self._connection:
            return work(self._connection)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """``work`` as one transaction, off the event loop."""
        return await asyncio.to_thread(self.run_now, work)

    def close(self) -> None:
        with self._lock:
            self._connection.close()
