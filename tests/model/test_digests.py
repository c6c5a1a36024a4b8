import hashlib
import os
from pathlib import Path

import pytest

from headway.model import digests
from headway.model.digests import cached_digest, combined_digest, hash_file, write_atomically, write_json
from headway.model.progress import silent


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_hash_file_is_sha256_of_all_of_it(tmp_path: Path, size) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "f").write_bytes(data[:size])
    assert hash_file(tmp_path / "f", silent) == sha256(data[:size])


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    """A file that has not been changed for long enough."""
    monkeypatch.setattr(digests, "CLOCK_STEP_NS", -1)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def digest(path: Path, rehash: bool = False) -> str:
    return cached_digest(path, path.parent / "records", silent, rehash)


def test_an_unchanged_file_is_read_once(model, monkeypatch) -> None:
    assert digest(model) == sha256(b"weights")
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read again"))
    assert digest(model) == sha256(b"weights")


def test_a_file_that_was_just_changed_is_read_again(tmp_path) -> None:
    """Its next change could come with the same times."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    assert digest(model) == sha256(b"weights")
    assert not (tmp_path / "records").exists()
    state = digests.FileState.of(model)
    assert not state.is_settled(state.ctime_ns + digests.CLOCK_STEP_NS)
    assert state.is_settled(state.ctime_ns + digests.CLOCK_STEP_NS + 1)


def wait_for_the_clock(model: Path) -> None:
    """Until a change gets another time than the last one had."""
    probe = model.with_name("probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= model.stat().st_ctime_ns:
        probe.touch()


def written(model: Path, new: bytes) -> None:
    model.write_bytes(new)


def written_with_its_old_time(model: Path, new: bytes) -> None:
    before = model.stat()
    model.write_bytes(new)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_with_its_old_time(model: Path, new: bytes) -> None:
    before, other = model.stat(), model.with_name("other")
    other.write_bytes(new)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, model)


@pytest.mark.parametrize("new", [b"WEIGHTS", b"weights, longer"])
@pytest.mark.parametrize("change", [written, written_with_its_old_time, replaced_with_its_old_time])
def test_a_changed_file_is_read_again(model, change, new) -> None:
    digest(model)
    wait_for_the_clock(model)
    change(model, new)
    assert digest(model) == sha256(new)


def test_what_is_asked_for_is_read_again(model, monkeypatch) -> None:
    digest(model)
    monkeypatch.setattr(digests, "hash_file", lambda *_: "another")
    assert digest(model) == sha256(b"weights")
    assert digest(model, rehash=True) == "another"


def test_a_change_while_it_is_read_voids_the_record(model, monkeypatch) -> None:
    def hash_and_change(path: Path, progress) -> str:
        wait_for_the_clock(path)
        path.write_bytes(b"changed")
        return sha256(b"weights")

    with monkeypatch.context() as patch:
        patch.setattr(digests, "hash_file", hash_and_change)
        digest(model)
    assert digest(model) == sha256(b"changed")


@pytest.mark.parametrize(
    "junk", ["", "{", "[]", '{"state": 3}', '{"state": {"size": 7}}', '{"record": {"sha256": "x"}}']
)
def test_a_damaged_record_is_ignored(model, junk) -> None:
    digest(model)
    (record,) = (model.parent / "records").iterdir()
    record.write_text(junk)
    assert digest(model) == sha256(b"weights")


def test_records_that_cannot_be_written_cost_only_time(tmp_path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    (tmp_path / "records").write_text("a file where the folder should be")
    assert cached_digest(model, tmp_path / "records", silent, False) == sha256(b"weights")


def test_combined_digest_is_what_sha256sum_prints() -> None:
    a, b = sha256(b"a"), sha256(b"b")
    assert combined_digest({"x": a}) == a
    assert combined_digest({"y": b, "x": a}) == sha256(f"{a}  x\n{b}  y\n".encode())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"old": 1})
    before = path.read_bytes()

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        write_atomically(path, fail)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
