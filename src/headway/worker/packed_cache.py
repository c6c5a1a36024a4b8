"""A model's packed weights from the cache: packed at its first start, mapped at the next ones."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway import __version__
from headway.errors import DownloadError
from headway.model.architecture import LayerWeights, ModelWeights, Vector
from headway.model.checkpoint import Checkpoint
from headway.model.digests import write_atomically
from headway.model.packed_folder import NotKept, PackedFolder
from headway.model.progress import Progress
from headway.ops.packed_file import DamagedFile, read_packed, write_packed
from headway.ops.weights import PackedMatrix

_log = logging.getLogger(__name__)

Packed = Mapping[str, PackedMatrix | Vector]


class PackedCache:
    """Weights as the native backend of ``packed_layout`` packs them. ``threads`` compare checksums."""

    def __init__(self, folder: PackedFolder, packed_layout: str, threads: int) -> None:
        self._folder = folder
        self._packed_layout = packed_layout
        self._threads = threads

    def weights(
        self, digest: str, checkpoint: Checkpoint, progress: Progress, is_current: Callable[[], bool]
    ) -> ModelWeights | None:
        """The weights of ``checkpoint``, whose files have the ``digest``; packed now if they have not been before.

        None where no file can be kept: the cache is read-only or full, or the files are others by the time they are
        packed, as ``is_current`` knows. Raises CheckpointError as the checkpoint does.
        """
        key = self._key(digest, checkpoint)
        file = self._folder.file(digest, key)
        found = self._read(file, key)
        if found is None:
            try:
                found = self._pack(file, key, checkpoint, progress, is_current)
            except DownloadError as error:  # nothing can be written to this cache; so it may be meant
                _log.info("%s", error)
            except (NotKept, OSError) as error:
                _log.warning("the packed weights of %s are not kept for the next start: %s", checkpoint.path, error)
        return None if found is None else _model_weights(found, len(checkpoint.architecture.layers))

    def _key(self, digest: str, checkpoint: Checkpoint) -> str:
        """Everything the packed bytes depend on: the stored ones, how they are read, how they are packed. The version
        stands for the code that does both."""
        origin = [digest, repr(checkpoint.architecture), self._packed_layout, __version__]
        return hashlib.sha256(json.dumps(origin).encode()).hexdigest()

    def _read(self, file: Path, key: str) -> Packed | None:
        try:
            found = read_packed(file, key, self._threads)
        except FileNotFoundError:
            return None
        except (DamagedFile, OSError) as error:
            _log.warning("%s cannot be used and is made anew: %s", file, error)
            with suppress(OSError):
                file.unlink(missing_ok=True)
            return None
        self._folder.used(file)
        return found

    def _pack(
        self, file: Path, key: str, checkpoint: Checkpoint, progress: Progress, is_current: Callable[[], bool]
    ) -> Packed | None:
        def write(temporary: Path) -> None:
            write_packed(temporary, key, _named(checkpoint, progress))
            if not is_current():
                raise NotKept("the model's files have changed meanwhile")
            self._folder.make_room(temporary.stat().st_size)

        with self._folder.lock(progress):
            found = self._read(file, key)
            if found is not None:
                return found  # another process was quicker
            self._folder.remove_leftovers()
            self._folder.require_room(_most_bytes(checkpoint))
            write_atomically(file, write)
            return self._read(file, key)


def _most_bytes(checkpoint: Checkpoint) -> int:
    """What the packed weights may take at most: dense ones keep their size, and of the others Q5_K grows most (5 bits
    become a byte, 6-bit scales and minima float32: from 5.5 to 10 bits a weight)."""
    return sum(t.data.nbytes * (1 if t.format.is_dense else 2) for t in checkpoint.tensors.values())


def _named(checkpoint: Checkpoint, progress: Progress) -> Iterator[tuple[str, Any]]:
    """Name and value of every weight, in the order in which a decoder reads them, a layer at a time."""
    weights = checkpoint.weights()
    label, size, total = f"repacking {checkpoint.path.name}", checkpoint.stored_bytes, len(weights.layers)
    yield from _present(weights, "", skip="layers")
    for i, layer in enumerate(weights.layers):
        yield from _present(layer, f"layers.{i}.")
        progress(label, size * (i + 1) // total, size)


def _present(weights: ModelWeights | LayerWeights, prefix: str, skip: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(weights):
        value = getattr(weights, field.name)
        if field.name != skip and value is not None:
            yield prefix + field.name, value


def _model_weights(packed: Packed, num_layers: int) -> ModelWeights:
    weights: Mapping[str, Any] = packed
    layers = [
        LayerWeights(**{field.name: weights.get(f"layers.{i}.{field.name}") for field in fields(LayerWeights)})
        for i in range(num_layers)
    ]
    return ModelWeights(weights["embedding"], layers, weights["final_norm"], weights.get("output"))
