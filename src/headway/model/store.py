"""The cache folder: which models are in it, what each file was when it was verified, and who may change it now.

models/<name>/manifest.json   written last: a model without one is not there
models/<name>/...             its files, beside the manifest
licences/<name>.json          licences that were accepted
digests/<hash of path>.json   digests of model files elsewhere on this disk
packed/...                    weights as the kernels read them: packed_folder.py
locks/<name>.lock             held while a model is fetched or removed; never deleted
"""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote

from headway.errors import DigestMismatch, DownloadError, ModelNotFound
from headway.model.digests import FileRecord, cached_digest, combined_digest, record_of, write_json
from headway.model.progress import Progress, bytes_under, format_bytes, silent

MANIFEST = "manifest.json"


def default_cache_dir() -> Path:
    """The platform's folder for caches: $XDG_CACHE_HOME or ~/.cache on Linux, ~/Library/Caches on macOS."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "headway"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headway"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model in the cache. ``path`` and the keys of ``files`` are relative to the model's folder.

    ``weights`` names the files that hold the weights; ``digest`` is theirs (``digests.combined_digest``).
    """

    name: str
    path: str
    revision: str
    source: str
    licence: str
    weights: tuple[str, ...]
    files: dict[str, FileRecord]

    @property
    def digest(self) -> str:
        return combined_digest({Path(name).name: self.files[name].sha256 for name in self.weights})

    @property
    def size(self) -> int:
        return sum(record.size for record in self.files.values())


class ModelStore:
    """Owns the folder ``root``. Reading never changes it; writing a model needs that model's ``lock``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def at(cls, cache_dir: str) -> "ModelStore":
        """``cache_dir`` as configured; empty means the platform's cache folder."""
        return cls(Path(cache_dir).expanduser() if cache_dir else default_cache_dir())

    def folder(self, name: str) -> Path:
        """One folder a name, directly under ``models`` whatever the name is."""
        if name in ("", ".", ".."):
            raise ModelNotFound(f"no model {name!r}: a model has a name")
        return self.root / "models" / quote(name, safe="@")

    def manifests(self) -> list[Manifest]:
        """Every model in the cache, by name. Their files are not looked at."""
        found = (_read_manifest(path.parent) for path in self.root.glob(f"models/*/{MANIFEST}"))
        return sorted((manifest for manifest in found if manifest), key=lambda manifest: manifest.name)

    def load(self, name: str, progress: Progress = silent, rehash: bool = False) -> Manifest | None:
        """The model, its files being what they were when verified; None when it, or a file of it, is not there.

        A file whose size or time has changed (or every one, with ``rehash``) is read again. If its bytes have changed,
        it is removed and ``DigestMismatch`` raised.
        """
        folder = self.folder(name)
        manifest = _read_manifest(folder)
        if manifest is None or manifest.name != name or not all((folder / file).is_file() for file in manifest.files):
            return None
        files = {
            file: record
            if not rehash and record.still_describes(folder / file)
            else _recheck(folder / file, record, progress)
            for file, record in manifest.files.items()
        }
        if files != manifest.files:
            manifest = replace(manifest, files=files)
            with suppress(OSError):  # a read-only cache is read again next time
                self.save(manifest)
        return manifest

    def save(self, manifest: Manifest) -> None:
        write_json(self.folder(manifest.name) / MANIFEST, asdict(manifest))

    def remove(self, name: str) -> int:
        """Deletes the model's folder, and returns the bytes that were in it. Call under the lock."""
        folder = self.folder(name)
        freed = bytes_under(folder)
        (folder / MANIFEST).unlink(missing_ok=True)  # first: from here on the model is not there
        shutil.rmtree(folder, ignore_errors=True)
        return freed

    def digest_of(self, path: Path, progress: Progress = silent, rehash: bool = False) -> str:
        """The digest of a file outside the cache, computed once, or again with ``rehash``."""
        return cached_digest(path, self.root / "digests", progress, rehash)

    @contextmanager
    def space(self, needed: int) -> Iterator[None]:
        """Raises ``DownloadError`` when the disk has not that many bytes free, or fills up while the body runs."""
        if shutil.disk_usage(self.root).free < needed:
            raise self._disk_full(needed)
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._disk_full(needed) from error
            raise

    def _disk_full(self, needed: int) -> DownloadError:
        free = shutil.disk_usage(self.root).free
        return DownloadError(
            f"this needs {format_bytes(needed)} free in {self.root}, and {format_bytes(free)} are free: remove a model "
            "with `headway models rm`, free some space, or choose another cache folder (HEADWAY_CACHE, model.cache_dir)"
        )

    @contextmanager
    def lock(self, name: str, progress: Progress = silent) -> Iterator[None]:
        """One process (and thread) at a time fetches or removes a model; others wait.

        The kernel holds the lock and drops it when its process ends, however that happens, so none is ever stale. Lock
        files stay: deleting one would let two processes lock two files of the same name.
        """
        path = self.root / "locks" / f"{quote(name, safe='@')}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise DownloadError(
                f"cannot write to the cache folder {self.root} ({error.strerror}): "
                "choose another one (HEADWAY_CACHE, model.cache_dir)"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another process to finish with {name}", 0, 0)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read_manifest(folder: Path) -> Manifest | None:
    """None when there is none, or none that this version understands: then the model is fetched, or verified, anew."""
    try:
        table = json.loads((folder / MANIFEST).read_text())
        files = {name: FileRecord(**record) for name, record in table.pop("files").items()}
        manifest = Manifest(**{**table, "weights": tuple(table["weights"])}, files=files)
        return manifest if manifest.digest else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _recheck(path: Path, record: FileRecord, progress: Progress) -> FileRecord:
    current = record_of(path, progress)
    if current.sha256 != record.sha256:
        path.unlink(missing_ok=True)
        raise DigestMismatch(
            f"{path} has changed since it was verified and was removed: expected sha256 {record.sha256}, "
            f"got {current.sha256}. Fetch it again with `headway models pull`"
        )
    return current
