import threading
from pathlib import Path

import pytest

from headway.model.progress import bytes_under, folder_growth, format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98362432, "98.4 MB"),
        (999_949_999, "999.9 MB"),
        (999_950_000, "1.0 GB"),
        (999_999_999_999, "1.0 TB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes_are_readable(count, text) -> None:
    assert format_bytes(count) == text


def test_growth_is_what_was_added_and_ends_at_the_total(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(bytes(100))
    (tmp_path / "deep").mkdir()
    calls = []
    halfway = threading.Event()

    def note(label: str, done: int, total: int) -> None:
        calls.append((label, done, total))
        if done == 30:
            halfway.set()

    with folder_growth(tmp_path, "working", 50, note):
        (tmp_path / "deep" / "new").write_bytes(bytes(30))
        assert halfway.wait(10)
    assert calls[0] == ("working", 0, 50)
    assert calls[-1] == ("working", 50, 50)
    assert all(0 <= done <= total for _, done, total in calls)


def test_work_that_fails_is_not_reported_as_done(tmp_path) -> None:
    calls = []
    with pytest.raises(KeyError), folder_growth(tmp_path, "working", 50, lambda *call: calls.append(call)):
        raise KeyError
    assert ("working", 50, 50) not in calls


def test_a_folder_that_is_not_there_holds_nothing(tmp_path) -> None:
    assert bytes_under(tmp_path / "absent") == 0
