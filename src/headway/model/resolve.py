"""From a model's name to the exact files to load: a path, ``hf:org/name``, or a name of the catalogue."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from headway.config import ModelConfig
from headway.errors import DownloadError, ModelNotFound, UnsupportedModel
from headway.model.assembly import assemble
from headway.model.catalogue import CatalogueEntry, catalogue
from headway.model.digests import FileRecord, combined_digest
from headway.model.hub import PREFIX, HubName, pull_from_hub
from headway.model.licences import AskLicence, require_acceptance
from headway.model.progress import Progress, silent
from headway.model.store import Manifest, ModelStore


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on disk. ``path`` is a GGUF file or a folder of safetensors.

    ``digest`` is the SHA-256 of the file that holds the weights, or ``digests.combined_digest`` of several.
    ``licence`` is empty when it is not known.
    """

    name: str
    path: Path
    revision: str
    digest: str
    licence: str
    source: str


def resolve_model(
    name: str, config: ModelConfig, progress: Progress = silent, ask_licence: AskLicence | None = None
) -> ResolvedModel:
    """The model's files, fetched if they are not on disk yet. Uses no network when they are.

    Raises a ``ModelError``: not found, licence not accepted, download failed, digest wrong.
    """
    return find_model(name, config, progress) or pull_model(name, config, progress, ask_licence)


def find_model(
    name: str, config: ModelConfig, progress: Progress = silent, rehash: bool = False
) -> ResolvedModel | None:
    """The model if it is on disk, None when it has to be fetched first. Raises ``ModelNotFound`` for any other name.

    With ``rehash`` every byte is read again and compared with the pinned digest; a path has none to compare with.
    """
    store = ModelStore.at(config.cache_dir)
    if not is_remote(name):
        return _local_model(name, store, progress, rehash)
    entry = catalogue().get(name)
    if entry is None:
        HubName.parse(name)
    manifest = store.load(name, progress, rehash)
    if manifest is None or (entry is not None and manifest.digest != entry.sha256):
        return None
    return _resolved(manifest, store)


def pull_model(
    name: str, config: ModelConfig, progress: Progress = silent, ask_licence: AskLicence | None = None
) -> ResolvedModel:
    """Fetches the model; one of a hub is brought to its newest commit."""
    if not is_remote(name):
        raise _not_found(name)
    store = ModelStore.at(config.cache_dir)
    try:
        if name.startswith(PREFIX):
            manifest = pull_from_hub(name, store, progress)
        else:
            manifest = _pull_entry(catalogue()[name], store, config.accept_licence, ask_licence, progress)
    except OSError as error:
        raise DownloadError(
            f"cannot store {name} in {store.root}: {error}. "
            "Check the disk and its permissions, or choose another cache folder (HEADWAY_CACHE, model.cache_dir)"
        ) from error
    return _resolved(manifest, store)


def is_remote(name: str) -> bool:
    """A catalogue name wins over a file of the same name, which ``./name`` still reaches."""
    return name.startswith(PREFIX) or name in catalogue()


def _pull_entry(
    entry: CatalogueEntry, store: ModelStore, accept: bool, ask: AskLicence | None, progress: Progress
) -> Manifest:
    with store.lock(entry.name, progress):
        present = store.load(entry.name, progress)
        if present is not None and present.digest == entry.sha256:
            return present  # another process was quicker
        require_acceptance(entry, store, accept, ask, progress)
        path = assemble(entry, store, progress)
        manifest = Manifest(
            name=entry.name,
            path=entry.file,
            revision=entry.revision,
            source=entry.source,
            licence=entry.licence.name,
            weights=(entry.file,),
            files={entry.file: FileRecord.of(path, entry.sha256)},
        )
        store.save(manifest)
        return manifest


def _resolved(manifest: Manifest, store: ModelStore) -> ResolvedModel:
    return ResolvedModel(
        name=manifest.name,
        path=store.folder(manifest.name) / manifest.path,
        revision=manifest.revision,
        digest=manifest.digest,
        licence=manifest.licence,
        source=manifest.source,
    )


def _local_model(name: str, store: ModelStore, progress: Progress, rehash: bool) -> ResolvedModel:
    path = Path(name).expanduser()
    try:
        weights = _weight_files(path) if name and path.exists() else []
        digests = {file.name: store.digest_of(file, progress, rehash) for file in weights}
    except OSError as error:
        raise ModelNotFound(
            f"cannot read {name!r}: {error.strerror} ({error.filename}); check the path and its permissions"
        ) from error
    if not digests:
        raise _not_found(name)
    digest = combined_digest(digests)
    return ResolvedModel(name, path, f"sha256:{digest[:12]}", digest, "", str(path.resolve()))


def _weight_files(path: Path) -> list[Path]:
    if path.is_file():
        from headway.model.gguf import is_gguf  # brings NumPy, which finding a cached model does not need

        if path.suffix.lower() != ".gguf" and not is_gguf(path):
            raise UnsupportedModel(
                f"{path} is not a GGUF file: name a .gguf file, or a folder with safetensors files in it"
            )
        return [path]
    if not path.is_dir():
        raise UnsupportedModel(f"{path} is neither a file nor a folder: name a GGUF file, or a folder with safetensors")
    found = sorted(path.glob("*.safetensors"))
    if not found:
        ggufs = ", ".join(sorted(file.name for file in path.glob("*.gguf")))
        raise UnsupportedModel(
            f"the folder {path} has no safetensors files in it"
            + (f"; to load a GGUF file, name the file itself: {ggufs}" if ggufs else "")
        )
    return found


def _not_found(name: str) -> ModelNotFound:
    known = ", ".join(catalogue())
    if name.endswith((".gguf", ".safetensors")) or name.startswith(("/", ".", "~")):
        hint = "there is no such file or folder"
    elif name.count("/") == 1:
        hint = f"there is no such folder; for a model of the Hugging Face hub write hf:{name}"
    else:
        near = difflib.get_close_matches(name.lower(), catalogue(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "it is not in the catalogue, and no file has this name"
    return ModelNotFound(
        f"no model {name!r}: {hint}\n"
        "A model is the path of a GGUF file or of a safetensors folder, hf:org/name[@revision], "
        f"or a name of the catalogue: {known}"
    )
