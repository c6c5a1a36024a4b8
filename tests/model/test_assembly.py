import errno
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import DigestMismatch, DownloadError
from headway.model import assembly, wheels
from headway.model.assembly import assemble
from headway.model.progress import silent
from headway.model.store import ModelStore
from wheelhouse import Wheelhouse, random_bytes

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    house = Wheelhouse(tmp_path / "wheelhouse")
    monkeypatch.setattr(wheels, "run_pip", house.pip)
    return house


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache")


def whole(entry) -> bytes:
    return b"".join(random_bytes(part.size, seed) for seed, part in enumerate(entry.parts))


def files(store: ModelStore, entry) -> set[str]:
    return {path.name for path in store.folder(entry.name).iterdir()}


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_parts_become_the_file(house, store, parts) -> None:
    entry = house.entry(parts=parts, part_size=3001)
    assert assemble(entry, store, silent).read_bytes() == whole(entry)
    assert files(store, entry) == {entry.file}
    assert house.requests == [part.requirement for part in entry.parts]


def test_a_second_time_fetches_nothing(house, store) -> None:
    entry = house.entry(parts=2)
    assemble(entry, store, silent)
    house.requests.clear()
    assemble(entry, store, silent)
    assert house.requests == []


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_interrupted_pull_goes_on_where_it_was(house, store, failing) -> None:
    entry = house.entry(parts=3)
    house.failures[entry.parts[failing].requirement] = (1, "ERROR: connection lost")
    with pytest.raises(DownloadError, match="connection lost"):
        assemble(entry, store, silent)
    assert files(store, entry) == ({f"{entry.file}.partial"} if failing else set())
    house.failures.clear()
    house.requests.clear()
    assert assemble(entry, store, silent).read_bytes() == whole(entry)
    assert house.requests == [part.requirement for part in entry.parts[failing:]]
    assert files(store, entry) == {entry.file}


@pytest.mark.parametrize("verified_parts", [0, 1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 1999])
def test_bytes_after_the_verified_parts_are_thrown_away(house, store, verified_parts, more) -> None:
    """What a killed process leaves: whole parts, then any number of bytes of the next."""
    entry = house.entry(parts=3, part_size=2000)
    partial = store.folder(entry.name) / f"{entry.file}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(whole(entry)[: verified_parts * 2000] + bytes(more))
    assert assemble(entry, store, silent).read_bytes() == whole(entry)
    assert house.requests == [part.requirement for part in entry.parts[verified_parts:]]


def test_a_damaged_partial_file_is_not_trusted(house, store) -> None:
    entry = house.entry(parts=3, part_size=2000)
    damaged = bytearray(whole(entry)[:4000])
    damaged[2500] ^= 1
    partial = store.folder(entry.name) / f"{entry.file}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(damaged)
    assert assemble(entry, store, silent).read_bytes() == whole(entry)
    assert house.requests == [part.requirement for part in entry.parts[1:]]


def test_a_part_with_a_wrong_digest_leaves_only_those_before_it(house, store) -> None:
    entry = house.entry(parts=3, part_size=2000)
    house.add(entry.parts[1].package, {entry.parts[1].member: bytes(2000)})
    with pytest.raises(DigestMismatch, match=entry.parts[1].sha256):
        assemble(entry, store, silent)
    assert (store.folder(entry.name) / f"{entry.file}.partial").read_bytes() == whole(entry)[:2000]
    assert files(store, entry) == {f"{entry.file}.partial"}


def test_a_whole_with_a_wrong_digest_is_removed(house, store) -> None:
    entry = replace(house.entry(parts=2), sha256="0" * 64)
    with pytest.raises(DigestMismatch, match="0" * 64):
        assemble(entry, store, silent)
    assert files(store, entry) == set()


def test_a_stray_file_under_the_models_name_is_replaced(house, store) -> None:
    entry = house.entry()
    target = store.folder(entry.name) / entry.file
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    assert assemble(entry, store, silent).read_bytes() == whole(entry)


def test_too_little_space_is_told_with_numbers_before_anything_is_fetched(house, store, monkeypatch) -> None:
    entry = house.entry(parts=2, part_size=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1234567, 1234567))
    with pytest.raises(DownloadError, match=r"needs 4\.0 MB free in .*cache, and 1\.2 MB are free.*HEADWAY_CACHE"):
        assemble(entry, store, silent)
    assert house.requests == []
    assert files(store, entry) == set()


def test_kept_parts_need_no_space_again(house, store, monkeypatch) -> None:
    entry = house.entry(parts=3, part_size=1_000_000)
    house.failures[entry.parts[2].requirement] = (1, "ERROR: connection lost")
    with pytest.raises(DownloadError):
        assemble(entry, store, silent)
    house.failures.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 3_100_000))
    assemble(entry, store, silent)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_disk_that_fills_up_leaves_only_verified_parts(house, store, monkeypatch, fails_at) -> None:
    entry = house.entry(parts=3, part_size=2000)
    writes = 0
    write_all = assembly._write_all

    def full(file, chunk) -> None:
        nonlocal writes
        writes += 1
        if writes == fails_at:
            write_all(file, chunk[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(file, chunk)

    monkeypatch.setattr(assembly, "_write_all", full)
    with pytest.raises(DownloadError, match=r"this needs .* free in"):
        assemble(entry, store, silent)
    partial = store.folder(entry.name) / f"{entry.file}.partial"
    assert (partial.read_bytes() if partial.exists() else b"") == whole(entry)[: (fails_at - 1) * 2000]
    assert files(store, entry) <= {partial.name}


def test_ctrl_c_while_unpacking_keeps_the_verified_parts(house, store, monkeypatch) -> None:
    entry = house.entry(parts=2, part_size=2000)

    def interrupt(label: str, done: int, total: int) -> None:
        if label == "unpacking tiny, part 2 of 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assemble(entry, store, interrupt)
    assert (store.folder(entry.name) / f"{entry.file}.partial").read_bytes() == whole(entry)[:2000]
    assert files(store, entry) == {f"{entry.file}.partial"}


def test_progress_names_every_stage_and_ends_at_its_total(house, store) -> None:
    entry = house.entry(parts=2, part_size=1_500_000)
    last: dict[str, tuple[int, int]] = {}

    def note(label: str, done: int, total: int) -> None:
        assert done >= last.get(label, (0, 0))[0]
        last[label] = (done, total)

    assemble(entry, store, note)
    assert list(last) == [
        "downloading tiny, part 1 of 2",
        "unpacking tiny, part 1 of 2",
        "downloading tiny, part 2 of 2",
        "unpacking tiny, part 2 of 2",
        "verifying tiny.gguf.partial",
    ]
    assert all(done == total for done, total in last.values())
