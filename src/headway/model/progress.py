"""What long work tells whoever watches. The library draws nothing itself: it calls a ``Progress``.

A call is (label, bytes done, bytes in all). A new label begins a new stage; 0 in all means waiting, length unknown.
Calls may come from another thread than the one that waits.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Progress = Callable[[str, int, int], None]

POLL_S = 0.1


def silent(label: str, done: int, total: int) -> None:
    pass


def format_bytes(count: int) -> str:
    """Decimal units, as disks and networks are sold: 98.4 MB."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


@contextmanager
def folder_growth(folder: Path, label: str, total: int, progress: Progress) -> Iterator[None]:
    """Reports what another program or library writes under ``folder`` while the body runs, as bytes added.

    Works for any downloader, whatever it prints and whichever temporary names it uses.
    """
    start = bytes_under(folder)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(POLL_S):
            progress(label, min(max(bytes_under(folder) - start, 0), total), total)

    progress(label, 0, total)
    watcher = threading.Thread(target=watch, name="headway-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
    progress(label, total, total)


def bytes_under(path: Path) -> int:
    """Of a file or a folder. What vanishes while we look (a rename, a clean-up) counts as nothing."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total
