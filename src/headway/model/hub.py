"""Models from a Hugging Face hub: ``hf:org/name``, ``hf:org/name@revision``, and ``:file.gguf`` after either.

Only files that are data are ever fetched: safetensors or GGUF, JSON, text. A pickle (.bin, .pt) can run code and never
is. A model stays at the commit it was fetched at until it is pulled again.
"""

import errno
import glob
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headway.errors import DownloadError, ModelNotFound, UnsupportedModel
from headway.model.digests import FileRecord, check_digest, record_of
from headway.model.progress import Progress, bytes_under, folder_growth
from headway.model.store import Manifest, ModelStore

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from huggingface_hub.hf_api import RepoSibling

PREFIX = "hf:"
SIDE_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    }
)
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_NAME = re.compile(
    r"hf:(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./-]+\.gguf))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HubName:
    repo: str
    revision: str | None
    file: str | None  # one GGUF file of a repository that has several

    @classmethod
    def parse(cls, name: str) -> "HubName":
        match = _NAME.fullmatch(name)
        if match is None or not _stays_inside(match["file"] or ""):
            raise ModelNotFound(
                f"{name!r} does not name a model on a hub: write hf:org/name, hf:org/name@revision, or "
                "hf:org/name:file.gguf for one GGUF file of it"
            )
        return cls(match["repo"], match["revision"], match["file"])


def pull_from_hub(name: str, store: ModelStore, progress: Progress) -> Manifest:
    """Fetches the model as it is on the hub now. What an earlier pull fetched stays when nothing has changed.

    Raises ``ModelNotFound``, ``UnsupportedModel``, ``DownloadError`` or ``DigestMismatch``.
    """
    wanted = HubName.parse(name)
    with store.lock(name, progress):
        info = _model_info(wanted)
        current = store.load(name, progress)
        if current is not None and current.revision == info.sha:
            return current
        manifest = _fetch(name, wanted, info, store, progress)
        store.save(manifest)
        if current is not None:
            shutil.rmtree(store.folder(name) / current.revision, ignore_errors=True)
        return manifest


def _model_info(wanted: HubName) -> "ModelInfo":
    from huggingface_hub import HfApi

    with _hub_errors(wanted):
        return HfApi().model_info(wanted.repo, revision=wanted.revision, files_metadata=True)


def _fetch(name: str, wanted: HubName, info: "ModelInfo", store: ModelStore, progress: Progress) -> Manifest:
    """Each commit has a folder of its own, so that a newer one never changes files in use."""
    siblings = {file.rfilename: file for file in info.siblings or () if _stays_inside(file.rfilename)}
    weights, others = choose_files(wanted, list(siblings))
    chosen = [siblings[file] for file in weights + others]
    commit = str(info.sha)
    folder = store.folder(name) / commit
    folder.mkdir(parents=True, exist_ok=True)
    missing = max(sum(sibling.size or 0 for sibling in chosen) - bytes_under(folder), 0)
    with store.space(missing), folder_growth(folder, f"downloading {name}", missing, progress):
        _download(wanted, commit, weights + others, folder)
    records = {f"{commit}/{file.rfilename}": _verified(folder, file, progress) for file in chosen}
    return Manifest(
        name=name,
        path=f"{commit}/{weights[0]}" if weights[0].endswith(".gguf") else commit,
        revision=commit,
        source=f"https://huggingface.co/{wanted.repo}",
        licence=next((tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")), ""),
        weights=tuple(f"{commit}/{file}" for file in weights),
        files=records,
    )


def choose_files(wanted: HubName, files: list[str]) -> tuple[list[str], list[str]]:
    """The files that hold the weights, and those that go with them; of a repository's ``files``, and never a pickle."""
    if wanted.file is not None:
        if wanted.file not in files:
            raise ModelNotFound(f"{wanted.repo} has no file {wanted.file}; {_list_ggufs(files)}")
        return [wanted.file], []
    if weights := _safetensors(files):
        if "config.json" not in files:
            raise UnsupportedModel(
                f"{wanted.repo} has no config.json, so it is not a whole model (an adapter, perhaps)"
            )
        sharded = [INDEX] if INDEX in files and _SHARD.fullmatch(weights[0]) else []
        return weights, sharded + sorted(SIDE_FILES.intersection(files))
    ggufs = [file for file in files if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs, []
    if ggufs:
        raise ModelNotFound(f"{wanted.repo} has several GGUF files: write hf:{wanted.repo}:FILE; {_list_ggufs(files)}")
    has_pickles = any(file.endswith(PICKLES) for file in files)
    only_pickles = ", only pickles, which can run code and are never fetched" if has_pickles else ""
    raise UnsupportedModel(
        f"{wanted.repo} has no safetensors and no GGUF file{only_pickles}: "
        "look for a conversion of it to safetensors or GGUF"
    )


def _safetensors(files: list[str]) -> list[str]:
    """Some repositories hold the weights twice (``consolidated.safetensors`` too): the usual names come first."""
    if "model.safetensors" in files:
        return ["model.safetensors"]
    found = sorted(file for file in files if file.endswith(".safetensors") and "/" not in file)
    return [file for file in found if _SHARD.fullmatch(file)] or found


def _stays_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def _list_ggufs(files: list[str]) -> str:
    return "its GGUF files: " + (", ".join(sorted(file for file in files if file.endswith(".gguf"))) or "none")


def _download(wanted: HubName, commit: str, files: list[str], folder: Path) -> None:
    """Resumes what is in ``folder`` already."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # we report progress ourselves
    with _hub_errors(wanted):
        snapshot_download(
            wanted.repo, revision=commit, local_dir=folder, allow_patterns=[glob.escape(file) for file in files]
        )
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
        raise DownloadError(f"the hub did not deliver {', '.join(absent)} of {wanted.repo}; try again")


def _verified(folder: Path, sibling: "RepoSibling", progress: Progress) -> FileRecord:
    """The hub states the SHA-256 of large files; the digest of a small one is pinned as it came."""
    path = folder / sibling.rfilename
    record = record_of(path, progress)
    expected = sibling.lfs.sha256 if sibling.lfs else record.sha256
    if record.sha256 != expected:
        path.unlink()
    check_digest(sibling.rfilename, record.sha256, expected)
    return record


@contextmanager
def _hub_errors(wanted: HubName) -> Iterator[None]:
    """Around calls of huggingface_hub only: whatever it raises, for which it has used three HTTP libraries so far."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{wanted.repo} is gated: accept its licence on https://huggingface.co/{wanted.repo}, then log in with "
            "`hf auth login` (or set HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"{wanted.repo} has no revision {wanted.revision!r}: give a branch, tag or commit"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"there is no model {wanted.repo} on the hub, or it is private: "
            "check the spelling, or log in with `hf auth login`"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DownloadError(
            f"cannot fetch {wanted.repo} from the hub ({type(error).__name__}: {error}). "
            "Check the network (HTTPS_PROXY, HF_ENDPOINT) and try again; a model pulled before needs none"
        ) from error
