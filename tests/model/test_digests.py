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


def test_an_unchanged_file_is_read_once(tmp_path, monkeypatch) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    assert cached_digest(model, tmp_path / "records", silent, False) == sha256(b"weights")
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read again"))
    assert cached_digest(model, tmp_path / "records", silent, False) == sha256(b"weights")


@pytest.mark.parametrize("change", ["size", "time", "asked"])
def test_a_changed_file_is_read_again(tmp_path, change) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    cached_digest(model, tmp_path / "records", silent, False)
    before = model.stat()
    new = b"weights, longer" if change == "size" else b"WEIGHTS"
    model.write_bytes(new)
    shift = 0 if change == "asked" else 1
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns + shift))
    assert cached_digest(model, tmp_path / "records", silent, change == "asked") == sha256(new)


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"record": 3}', '{"record": {"sha256": "x"}}'])
def test_a_damaged_record_is_ignored(tmp_path, junk) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    cached_digest(model, tmp_path / "records", silent, False)
    (record,) = (tmp_path / "records").iterdir()
    record.write_text(junk)
    assert cached_digest(model, tmp_path / "records", silent, False) == sha256(b"weights")


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
