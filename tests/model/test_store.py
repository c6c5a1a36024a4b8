import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import DigestMismatch, DownloadError, ModelNotFound
from headway.model import digests, store
from headway.model.digests import FileRecord
from headway.model.store import Manifest, ModelStore, default_cache_dir
from wheelhouse import sha256


@pytest.fixture
def cache(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache")


def put(cache: ModelStore, name: str = "tiny", **contents: bytes) -> Manifest:
    contents = contents or {"model.gguf": b"weights"}
    folder = cache.folder(name)
    folder.mkdir(parents=True)
    for file, data in contents.items():
        (folder / file).write_bytes(data)
    manifest = Manifest(
        name=name,
        path=next(iter(contents)),
        revision="r1",
        source="somewhere",
        licence="MIT",
        weights=tuple(contents),
        files={file: FileRecord.of(folder / file, sha256(data)) for file, data in contents.items()},
    )
    cache.save(manifest)
    return manifest


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def test_what_was_saved_is_loaded(cache) -> None:
    manifest = put(cache)
    assert cache.load("tiny") == manifest
    assert cache.manifests() == [manifest]
    assert manifest.digest == sha256(b"weights")
    assert manifest.size == 7


def test_loading_does_not_read_unchanged_files(cache, monkeypatch) -> None:
    manifest = put(cache)
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read again"))
    assert cache.load("tiny") == manifest


def test_a_touched_file_is_verified_once_more(cache, monkeypatch) -> None:
    put(cache)
    touch(cache.folder("tiny") / "model.gguf")
    again = cache.load("tiny")
    assert again is not None and again.digest == sha256(b"weights")
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read again"))
    assert cache.load("tiny") == again


def test_changed_bytes_are_found_named_and_removed(cache) -> None:
    put(cache)
    model = cache.folder("tiny") / "model.gguf"
    model.write_bytes(b"WEIGHTS")
    touch(model)
    with pytest.raises(DigestMismatch) as caught:
        cache.load("tiny")
    assert sha256(b"weights") in str(caught.value) and sha256(b"WEIGHTS") in str(caught.value)
    assert not model.exists()
    assert cache.load("tiny") is None


def test_rehash_finds_bytes_that_changed_behind_an_unchanged_time(cache) -> None:
    put(cache)
    model = cache.folder("tiny") / "model.gguf"
    before = model.stat()
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.load("tiny") is not None
    with pytest.raises(DigestMismatch):
        cache.load("tiny", rehash=True)


@pytest.mark.parametrize(
    "junk", ["", "{", "[]", "{}", '{"files": {}}', '{"files": 1}', "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_damaged_manifest_is_no_model(cache, junk) -> None:
    put(cache)
    manifest = cache.folder("tiny") / "manifest.json"
    manifest.write_bytes(junk if isinstance(junk, bytes) else junk.encode())
    assert cache.load("tiny") is None
    assert cache.manifests() == []


def test_a_model_with_a_file_missing_is_no_model(cache) -> None:
    put(cache, **{"a.safetensors": b"a", "b.safetensors": b"b"})
    (cache.folder("tiny") / "b.safetensors").unlink()
    assert cache.load("tiny") is None


def test_a_manifest_of_another_name_is_not_taken(cache) -> None:
    """A file system that ignores case gives two names one folder."""
    put(cache, "hf:Org/Name")
    cache.folder("hf:Org/Name").rename(cache.folder("hf:org/name"))
    assert cache.load("hf:org/name") is None


@given(st.text(max_size=40))
def test_every_name_has_a_folder_of_its_own_directly_under_models(name) -> None:
    cache = ModelStore(Path("/cache"))
    try:
        folder = cache.folder(name.encode("utf-8", "replace").decode())
    except ModelNotFound:
        assert name in ("", ".", "..")
    else:
        assert os.path.normpath(folder) == str(folder)
        assert folder.parent == Path("/cache/models")


def test_names_that_look_alike_do_not_share_a_folder(cache) -> None:
    names = ["hf:a/b", "hf:a--b", "hf%3Aa%2Fb", "hf:a/b@main", "hf:a/b@Main", "hf:a/b:main", "a b", "a%20b", ".a", "a."]
    assert len({cache.folder(name) for name in names}) == len(names)


def test_remove_frees_everything_of_that_model_and_nothing_else(cache) -> None:
    put(cache)
    other = put(cache, "other")
    with cache.lock("tiny"):
        assert cache.remove("tiny") > 7
    assert cache.manifests() == [other]
    assert not cache.folder("tiny").exists()


def test_the_lock_lets_one_in_and_tells_who_waits(cache) -> None:
    waiting = threading.Event()
    entered: list[str] = []

    def second() -> None:
        with cache.lock("tiny", lambda label, done, total: waiting.set()):
            entered.append("second")

    with cache.lock("tiny"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        entered.append("first")
    thread.join(10)
    assert entered == ["first", "second"]


def test_locks_of_two_models_are_independent(cache) -> None:
    with cache.lock("a"), cache.lock("b", lambda *_: pytest.fail("waited")):
        pass


def test_a_killed_process_leaves_no_lock(cache) -> None:
    script = (
        "import sys, time; from pathlib import Path; from headway.model.store import ModelStore\n"
        "with ModelStore(Path(sys.argv[1])).lock('tiny'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(store.__file__).parents[2])}
    holder = subprocess.Popen([sys.executable, "-c", script, str(cache.root)], stdout=subprocess.PIPE, env=environment)
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGKILL)
    with cache.lock("tiny", lambda *_: pytest.fail("waited for a dead process")):
        pass


def test_a_cache_that_cannot_be_written_says_so(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DownloadError, match=r"cannot write to the cache folder .*HEADWAY_CACHE"),
        ModelStore(tmp_path / "file").lock("tiny"),
    ):
        pass


@pytest.mark.parametrize(
    ("platform", "xdg", "expected"),
    [
        ("linux", "", "~/.cache/headway"),
        ("linux", "/var/cache/me", "/var/cache/me/headway"),
        ("linux", "relative", "~/.cache/headway"),
        ("darwin", "/var/cache/me", "~/Library/Caches/headway"),
    ],
)
def test_the_default_cache_folder_is_the_platforms(monkeypatch, platform, xdg, expected) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert default_cache_dir() == Path(expected).expanduser()


def test_a_configured_cache_folder_is_used(tmp_path) -> None:
    assert ModelStore.at(str(tmp_path)).root == tmp_path
    assert ModelStore.at("~/x").root == Path.home() / "x"
    assert ModelStore.at("").root == default_cache_dir()
