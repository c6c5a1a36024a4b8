"""The folder of packed weights stays within its limit, and the disk free."""

import os
import shutil
from collections import namedtuple

import pytest

from headway.model.packed_folder import DISK_RESERVE_BYTES, NotKept, PackedFolder
from headway.model.progress import silent
from headway.model.store import ModelStore


def folder(tmp_path, limit_bytes=100):
    (tmp_path / "packed").mkdir(exist_ok=True)
    return PackedFolder(ModelStore(tmp_path), limit_bytes)


def put(packed, digest, size, age, key="key"):
    """A file last used ``age`` seconds ago."""
    file = packed.file(digest, key)
    file.write_bytes(bytes(size))
    used = file.stat().st_mtime - age
    os.utime(file, (used, used))
    return file


@pytest.mark.parametrize(
    ("needed", "kept"), [(0, "abc"), (10, "abc"), (11, "bc"), (40, "bc"), (41, "c"), (70, "c"), (71, ""), (100, "")]
)
def test_the_least_recently_used_give_way(tmp_path, needed, kept):
    packed = folder(tmp_path)
    for age, digest in enumerate("cba"):
        put(packed, digest, 30, age)
    packed.make_room(needed)
    assert "".join(sorted(file.name[0] for file in (tmp_path / "packed").iterdir())) == kept


def test_a_use_counts(tmp_path):
    packed = folder(tmp_path)
    old, new = put(packed, "old", 50, 100), put(packed, "new", 50, 50)
    packed.used(old)
    packed.make_room(50)
    assert old.exists() and not new.exists()
    packed.used(tmp_path / "no folder" / "file")  # as in a cache that cannot be written: no error


def test_what_cannot_fit_is_refused_with_the_numbers(tmp_path):
    folder(tmp_path).require_room(100)
    with pytest.raises(NotKept, match=r"101 B, and model\.packed_cache_bytes is 100"):
        folder(tmp_path).require_room(101)


def test_some_of_the_disk_stays_free(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(DISK_RESERVE_BYTES + 50))
    folder(tmp_path).require_room(50)
    with pytest.raises(NotKept, match=r"51 B.* free in .*packed.*1\.1 GB are left alone"):
        folder(tmp_path).require_room(51)


def test_removing_a_model_takes_all_of_its_files_and_no_others(tmp_path):
    packed = folder(tmp_path)
    put(packed, "a", 10, 0, "one")
    put(packed, "a", 20, 0, "two")
    other = put(packed, "ab", 30, 0)
    assert packed.size == 60
    assert packed.remove("a") == 30
    assert packed.size == 30 and other.exists()
    assert packed.remove("a") == 0


def test_what_a_killed_process_left_is_removed(tmp_path):
    packed = folder(tmp_path)
    kept = put(packed, "a", 10, 0)
    (tmp_path / "packed" / f".{kept.name}.123.456.tmp").write_bytes(bytes(10))
    packed.remove_leftovers()
    assert list((tmp_path / "packed").iterdir()) == [kept]


def test_one_at_a_time_writes(tmp_path):
    waits = []
    with folder(tmp_path).lock(silent):
        locked = ModelStore(tmp_path).lock("packed weights", lambda *stage: waits.append(stage) or exit())
        with pytest.raises(SystemExit), locked:
            pass
    assert waits


def test_a_cache_that_is_not_there_holds_nothing(tmp_path):
    packed = PackedFolder(ModelStore(tmp_path / "none"))
    assert packed.size == 0 and packed.remove("a") == 0
