"""What every command does the same way: where output and messages go, how errors end it, how long work is shown."""

import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from headway.errors import HeadwayError
from headway.model.progress import format_bytes

PIPE_WIDTH = 160  # columns where there is no terminal: tables keep one line a row


def output() -> Console:
    """Standard output: what was asked for."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def messages() -> Console:
    """Standard error: progress, questions and errors."""
    return Console(stderr=True)


@contextmanager
def error_exit() -> Iterator[None]:
    """A Headway error becomes its message and exit status 1; anything else is our fault and keeps its traceback."""
    try:
        yield
    except HeadwayError as error:
        messages().print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


class TerminalProgress:
    """A ``headway.model.progress.Progress``: a bar for each stage, or a line where there is no terminal.

    Nothing is drawn until something happens, so work that is already done costs no output.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last = ""

    def __call__(self, label: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            self._draw(label, done, total)
        elif label != self._last:
            self.console.print(
                f"{label} ({format_bytes(total)})" if total else label, highlight=False, markup=False, soft_wrap=True
            )
        self._last = label

    def _draw(self, label: str, done: int, total: int) -> None:
        if self._bars is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
            )
            self._bars = Progress(*columns, console=self.console)
            self._bars.start()
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total or None)
        self._bars.update(self._tasks[label], completed=done)

    def stop(self) -> None:
        """Leaves the bars as they are and frees the terminal, for a question or for good."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks = {}

    def __enter__(self) -> "TerminalProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def show_text(text: str) -> None:
    """A piece of a model's answer, at once; to a terminal, without the control characters that could repaint it."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
    sys.stdout.write(text)
    sys.stdout.flush()
