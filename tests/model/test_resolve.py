import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headway.config import ModelConfig
from headway.errors import DigestMismatch, DownloadError, LicenceNotAccepted, ModelNotFound, UnsupportedModel
from headway.model import digests, resolve, wheels
from headway.model.resolve import find_model, pull_model, resolve_model
from wheelhouse import Wheelhouse, random_bytes, sha256


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    """A wheelhouse that is the only index, and a catalogue of two models from it."""
    house = Wheelhouse(tmp_path / "wheelhouse")
    monkeypatch.setattr(wheels, "run_pip", house.pip)
    entries = {"tiny": house.entry("tiny", parts=2), "guarded": house.entry("guarded", terms=True)}
    monkeypatch.setattr(resolve, "catalogue", lambda: entries)
    return house


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig(cache_dir=str(tmp_path / "cache"))


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "run_pip", lambda *_: pytest.fail("used the network"))


def test_a_catalogue_model_is_fetched_and_fully_named(house, config) -> None:
    model = resolve_model("tiny", config)
    content = random_bytes(4000, 0) + random_bytes(4000, 1)
    assert model.path.read_bytes() == content
    assert (model.name, model.revision, model.digest) == ("tiny", "tiny 1.0", sha256(content))
    assert (model.licence, model.source) == ("Kind Licence", "nowhere")


def test_a_second_start_uses_no_network_and_reads_no_weights(house, config, monkeypatch) -> None:
    first = resolve_model("tiny", config)
    no_network(monkeypatch)
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read the weights"))
    assert resolve_model("tiny", config) == first
    assert pull_model("tiny", config) == first


def test_a_read_only_cache_serves(house, config, monkeypatch) -> None:
    """As in a container image: nothing can be written, times differ from those recorded."""
    first = resolve_model("tiny", config)
    os.utime(first.path, ns=(0, 1))
    no_network(monkeypatch)
    monkeypatch.setattr(resolve.ModelStore, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "read-only")))
    assert resolve_model("tiny", config) == first


def test_find_fetches_nothing(house, config, monkeypatch) -> None:
    no_network(monkeypatch)
    assert find_model("tiny", config) is None
    assert find_model("hf:org/name", config) is None


def test_a_lost_manifest_costs_a_hash_and_no_download(house, config, monkeypatch) -> None:
    first = resolve_model("tiny", config)
    (first.path.parent / "manifest.json").unlink()
    no_network(monkeypatch)
    assert resolve_model("tiny", config) == first


def test_changed_bytes_are_an_error_once_and_fetched_anew_after_it(house, config) -> None:
    first = resolve_model("tiny", config)
    first.path.write_bytes(bytes(8000))
    with pytest.raises(DigestMismatch):
        resolve_model("tiny", config)
    assert resolve_model("tiny", config) == first


def test_a_new_pin_of_a_name_is_fetched(house, config, monkeypatch) -> None:
    resolve_model("tiny", config)
    newer = replace(house.entry("newer"), name="tiny")
    monkeypatch.setattr(resolve, "catalogue", lambda: {"tiny": newer})
    assert resolve_model("tiny", config).digest == newer.sha256


def test_a_licence_is_needed_before_the_first_part(house, config) -> None:
    with pytest.raises(LicenceNotAccepted):
        resolve_model("guarded", config)
    assert house.requests == ["guarded-terms==1.0"]
    assert resolve_model("guarded", replace(config, accept_licence=True)).path.exists()
    assert resolve_model("guarded", config).path.exists()


def test_a_licence_can_be_asked_for(house, config) -> None:
    assert resolve_model("guarded", config, ask_licence=lambda terms: terms.model == "guarded").path.exists()


def test_many_pulls_at_once_fetch_once(house, config) -> None:
    results, errors = [], []
    barrier = threading.Barrier(8)

    def pull() -> None:
        try:
            barrier.wait(10)
            results.append(resolve_model("tiny", config))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=pull) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert len(set(results)) == 1 and len(results) == 8
    assert house.requests == ["tiny-part0==1.0", "tiny-part1==1.0"]


def test_any_failure_to_store_is_a_download_error(house, config, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(resolve, "assemble", fail)
    with pytest.raises(DownloadError, match=r"cannot store tiny in .*cache: .*Input/output error"):
        resolve_model("tiny", config)


def test_a_gguf_file_is_a_model(house, config, tmp_path) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"weights")
    model = resolve_model(str(path), config)
    assert (model.path, model.digest, model.licence) == (path, sha256(b"weights"), "")
    assert model.revision == f"sha256:{sha256(b'weights')[:12]}"


def test_a_folder_of_safetensors_is_a_model(house, config, tmp_path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("b.safetensors", "a.safetensors"):
        (tmp_path / "model" / name).write_bytes(name.encode())
    model = resolve_model(str(tmp_path / "model"), config)
    lines = "".join(f"{sha256(name.encode())}  {name}\n" for name in ("a.safetensors", "b.safetensors"))
    assert model.digest == sha256(lines.encode())


def test_a_catalogue_name_wins_over_a_file_which_its_path_still_reaches(house, config, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    Path("tiny/model.safetensors").write_bytes(b"mine")
    assert resolve_model("tiny", config).source == "nowhere"
    assert resolve_model("./tiny", config).digest == sha256(b"mine")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tinny", "did you mean tiny?"),
        ("TINY", "did you mean tiny?"),
        ("guarded-2", "did you mean guarded?"),
        ("something-else-altogether", "not in the catalogue"),
        ("org/name", "write hf:org/name"),
        ("/no/such/file", "no such file or folder"),
        ("./no.gguf", "no such file or folder"),
        ("no.gguf", "no such file or folder"),
        ("", "not in the catalogue"),
    ],
)
def test_an_unknown_name_is_answered_with_what_there_is(house, config, name, hint) -> None:
    for ask in (resolve_model, find_model, pull_model):
        with pytest.raises(ModelNotFound) as caught:
            ask(name, config)
        assert hint in str(caught.value)
        assert "tiny, guarded" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["hf:", "hf:name", "hf:a/b/c", "hf:a/b@", "hf:a/b:x.bin", "hf:a/b:../x.gguf", "hf:../b", "hf: a/b"]
)
def test_a_malformed_hub_name_is_refused_without_a_network(house, config, name) -> None:
    with pytest.raises(ModelNotFound, match="write hf:org/name"):
        resolve_model(name, config)


def test_a_file_that_cannot_be_read_is_an_error_of_ours(house, config, tmp_path, monkeypatch) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"weights")

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(resolve.ModelStore, "digest_of", deny)
    with pytest.raises(ModelNotFound, match="Permission denied"):
        resolve_model(str(path), config)
    with pytest.raises(ModelNotFound, match="too long"):
        resolve_model("x" * 5000, config)


def test_a_gguf_file_may_have_any_name(house, config, tmp_path) -> None:
    (tmp_path / "blob").write_bytes(b"GGUF and so on")
    assert resolve_model(str(tmp_path / "blob"), config).digest == sha256(b"GGUF and so on")


def test_files_of_another_kind_are_refused(house, config, tmp_path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"not a GGUF file"):
        resolve_model(str(tmp_path / "model.bin"), config)
    with pytest.raises(UnsupportedModel, match="no safetensors files"):
        resolve_model(str(tmp_path), config)
    (tmp_path / "inside.gguf").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"name the file itself: inside\.gguf"):
        resolve_model(str(tmp_path), config)
