import errno
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from headway.config import ModelConfig
from headway.errors import DigestMismatch, DownloadError, HeadwayError, ModelNotFound, UnsupportedModel
from headway.model import digests
from headway.model.hub import HubName, choose_files
from headway.model.resolve import find_model, pull_model, resolve_model
from wheelhouse import sha256

SMALL_REPO = {"config.json": b"{}", "tokenizer.json": b"{t}", "model.safetensors": b"weights", "README.md": b"read"}


class FakeHub:
    """One repository at one commit, served through the two functions of huggingface_hub that are used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = dict(SMALL_REPO)
        self.commit = "c" * 40
        self.failure: Exception | None = None  # what the library would raise
        self.corrupt: str | None = None
        self.asked: list[tuple[str, str | None]] = []
        self.downloads = 0
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=self.model_info))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def model_info(self, repo: str, *, revision: str | None, files_metadata: bool) -> SimpleNamespace:
        assert files_metadata
        if self.failure:
            raise self.failure
        self.asked.append((repo, revision))
        siblings = [
            SimpleNamespace(
                rfilename=name,
                size=len(data),
                lfs=SimpleNamespace(sha256=sha256(data)) if name.endswith((".safetensors", ".gguf")) else None,
            )
            for name, data in self.files.items()
        ]
        return SimpleNamespace(sha=self.commit, siblings=siblings, tags=["license:mit", "safetensors"])

    def snapshot_download(self, repo: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> str:
        assert revision == self.commit
        self.downloads += 1
        for name, data in self.files.items():
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                path = Path(local_dir) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data[::-1] if name == self.corrupt else data)
        return str(local_dir)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig(cache_dir=str(tmp_path / "cache"))


def http_error(kind: type[Exception]) -> Exception:
    return kind("refused", response=SimpleNamespace(headers={}, request=None))  # type: ignore[call-arg]


def test_a_repository_is_fetched_and_fully_named(hub, config) -> None:
    model = resolve_model("hf:org/name", config)
    assert {path.name for path in model.path.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (model.name, model.revision, model.digest) == ("hf:org/name", hub.commit, sha256(b"weights"))
    assert (model.licence, model.source) == ("mit", "https://huggingface.co/org/name")


def test_a_revision_is_asked_for(hub, config) -> None:
    resolve_model("hf:org/name@refs/pr/3", config)
    assert hub.asked == [("org/name", "refs/pr/3")]


def test_a_second_start_needs_no_network(hub, config, monkeypatch) -> None:
    first = resolve_model("hf:org/name", config)
    hub.failure = ConnectionError("no network")
    monkeypatch.setattr(digests, "hash_file", lambda *_: pytest.fail("read the weights"))
    assert resolve_model("hf:org/name", config) == first


def test_the_model_stays_at_its_commit_until_it_is_pulled_again(hub, config) -> None:
    first = resolve_model("hf:org/name", config)
    hub.commit, hub.files["model.safetensors"] = "d" * 40, b"new weights"
    assert resolve_model("hf:org/name", config) == first
    second = pull_model("hf:org/name", config)
    assert (second.revision, second.digest) == (hub.commit, sha256(b"new weights"))
    assert resolve_model("hf:org/name", config) == second
    assert not first.path.exists()


def test_a_pull_without_news_downloads_nothing(hub, config) -> None:
    first = pull_model("hf:org/name", config)
    assert pull_model("hf:org/name", config) == first
    assert hub.downloads == 1


def test_one_gguf_file_of_several(hub, config) -> None:
    hub.files = {"a-q4.gguf": b"four", "q8/a-q8.gguf": b"eight", "config.json": b"{}"}
    with pytest.raises(ModelNotFound, match=r"write hf:org/name:FILE; its GGUF files: a-q4.gguf, q8/a-q8.gguf"):
        resolve_model("hf:org/name", config)
    model = resolve_model("hf:org/name:q8/a-q8.gguf", config)
    assert model.path.read_bytes() == b"eight"
    assert model.path.name == "a-q8.gguf"
    with pytest.raises(ModelNotFound, match=r"no file a-q5\.gguf"):
        resolve_model("hf:org/name:a-q5.gguf", config)


def test_the_hubs_own_digest_is_checked(hub, config) -> None:
    hub.corrupt = "model.safetensors"
    with pytest.raises(DigestMismatch, match=sha256(b"weights")):
        resolve_model("hf:org/name", config)
    assert find_model("hf:org/name", config) is None
    assert not list(Path(config.cache_dir).rglob("model.safetensors")), "kept, it would be taken for fetched"
    hub.corrupt = None
    assert resolve_model("hf:org/name", config).digest == sha256(b"weights")


def test_files_that_did_not_arrive_are_missed(hub, config, monkeypatch) -> None:
    """The library returns quietly when it finds no network and a folder that is there."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: "")
    with pytest.raises(DownloadError, match=r"did not deliver model\.safetensors"):
        resolve_model("hf:org/name", config)


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: http_error(hub_errors.GatedRepoError), DownloadError, "hf auth login"),
        (lambda: http_error(hub_errors.RepositoryNotFoundError), ModelNotFound, "no model org/name on the hub"),
        (lambda: http_error(hub_errors.RevisionNotFoundError), ModelNotFound, "no revision 'v1'"),
        (lambda: http_error(hub_errors.HfHubHTTPError), DownloadError, "Check the network"),
        (lambda: hub_errors.HFValidationError("bad"), ModelNotFound, "no model org/name on the hub"),
        (lambda: hub_errors.OfflineModeIsEnabled("offline"), DownloadError, "Check the network"),
        (lambda: ConnectionError("refused"), DownloadError, "Check the network"),
        (lambda: TimeoutError("slow"), DownloadError, "Check the network"),
        (lambda: RuntimeError("a library's own"), DownloadError, "a library's own"),
    ],
)
def test_what_the_library_raises_becomes_an_error_of_ours(
    hub, config, make: Callable[[], Exception], kind: type[HeadwayError], says: str
) -> None:
    hub.failure = make()
    with pytest.raises(kind, match=says):
        resolve_model("hf:org/name@v1", config)


def test_a_disk_that_fills_up_is_told_with_numbers(hub, config, monkeypatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(DownloadError, match=r"this needs 12 B free in"):
        resolve_model("hf:org/name", config)


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        ([*SHARDS, "model.safetensors.index.json", "consolidated.safetensors"], SHARDS),
        (["other.safetensors"], ["other.safetensors"]),
        (["model.safetensors", "pytorch_model.bin", "model.gguf"], ["model.safetensors"]),
        (["model.safetensors", "original/model-00001-of-00001.safetensors"], ["model.safetensors"]),
    ],
)
def test_the_weights_are_chosen_once(files, weights) -> None:
    chosen, others = choose_files(
        HubName.parse("hf:a/b"), [*files, "config.json", "merges.txt", "modeling.py", "x.bin"]
    )
    assert chosen == weights
    index = ["model.safetensors.index.json"] if weights == SHARDS else []
    assert others == [*index, "config.json", "merges.txt"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["pytorch_model.bin", "config.json"], "only pickles"),
        (["model.pt"], "only pickles"),
        (["README.md"], "no safetensors and no GGUF"),
        ([], "no safetensors and no GGUF"),
        (["adapter_model.safetensors"], "no config.json"),
        (["../../evil.gguf"], "no safetensors and no GGUF"),
        (["/tmp/evil.gguf"], "no safetensors and no GGUF"),
    ],
)
def test_repositories_without_a_model_to_load_are_refused(hub, config, files, says) -> None:
    hub.files = dict.fromkeys(files, b"x")
    with pytest.raises(UnsupportedModel, match=says):
        resolve_model("hf:org/name", config)
    assert hub.downloads == 0
