"""A model's packed weights from the cache: packed at its first start, mapped at the next ones."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from headway import __version__
from headway.errors import DownloadError
from headway.model.architecture import LayerWeights, ModelWeights, Vector
from headway.model.checkpoint import Checkpoint
from headway.model.digests import write_atomically
from headway.model.packed_folder import NotKept, PackedFolder
from headway.model.progress import Progress
from headway.model.resolve import ResolvedModel
from headway.ops.contract import Backend
from headway.ops.packed_file import DamagedFile, read_packed, write_packed
from headway.ops.weights import PackedMatrix

_log = logging.getLogger(__name__)

Packed = Mapping[str, PackedMatrix | Vector]


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """One model's weights as ``backend`` packs them, in a file of ``folder``.

    ``checkpoint`` is the model, opened; as many threads as the backend's compare checksums.
    """

    folder: PackedFolder
    model: ResolvedModel
    checkpoint: Checkpoint
    backend: Backend

    def load(self, progress: Progress, is_current: Callable[[], bool]) -> ModelWeights | None:
        """The weights, mapped; packed now if they have not been before.

        None where no file can be kept: the cache is read-only or has no room, or ``is_current`` says after the packing
        that the model on disk is another one by now. Raises CheckpointError as the checkpoint does.
        """
        try:
            found = self._read() or self._pack(progress, is_current)
        except DownloadError as error:  # nothing can be written to this cache, and that may be meant
            _log.info("%s", error)
        except (NotKept, DamagedFile, OSError) as error:
            _log.warning("the packed weights of %s are not kept for the next start: %s", self.model.name, error)
        else:
            return _model_weights(found, len(self.checkpoint.architecture.layers))
        return None

    @property
    def key(self) -> str:
        """Everything the file depends on: the stored weights, how they are read and named, how they are packed. The
        version stands for the code that does it."""
        roles = [field.name for field in fields(LayerWeights)]
        origin = [self.model.digest, repr(self.checkpoint.architecture), roles, self.backend.packed_layout, __version__]
        return hashlib.sha256(json.dumps(origin).encode()).hexdigest()

    @property
    def file(self) -> Path:
        return self.folder.file(self.model.digest, self.key)

    def _read(self) -> Packed | None:
        """None when there is no file, or no sound one, which is removed."""
        try:
            found = read_packed(self.file, self.key, self.backend.threads)
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            _log.warning("%s is removed, and made anew: %s", self.file, error)
            self.file.unlink(missing_ok=True)
            return None
        self.folder.used(self.file)
        return found

    def _pack(self, progress: Progress, is_current: Callable[[], bool]) -> Packed:
        def write(temporary: Path) -> None:
            write_packed(temporary, self.key, self._named(progress))
            if not is_current():
                raise NotKept("the model's files have changed meanwhile")
            self.folder.make_room(temporary.stat().st_size)

        with self.folder.lock(progress):
            found = self._read()  # another process may have been quicker
            if found is None:
                self.folder.remove_leftovers()
                self.folder.require_room(_most_bytes(self.checkpoint))
                write_atomically(self.file, write)
                found = read_packed(self.file, self.key, self.backend.threads)
            return found

    def _named(self, progress: Progress) -> Iterator[tuple[str, Any]]:
        """Name and value of every weight, a layer at a time, in the order in which a decoder reads them."""
        weights = self.checkpoint.weights()
        size, num_layers = self.checkpoint.stored_bytes, len(weights.layers)
        yield from self._packed(_present(weights, "", skip="layers"))
        for i, layer in enumerate(weights.layers):
            yield from self._packed(_present(layer, f"layers.{i}."))
            progress(f"repacking {self.model.name}", size * (i + 1) // num_layers, size)

    def _packed(self, values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, value in values:
            is_vector = isinstance(value, np.ndarray)
            yield name, value if is_vector else self.backend.pack(value, is_table=name == "embedding")


def _most_bytes(checkpoint: Checkpoint) -> int:
    """What the packed weights may take: dense ones keep their size, and of the others Q5_K's grow most (5 bits become
    a byte, and 6-bit scales and minima float32: from 5.5 to 10 bits a weight)."""
    return sum(t.data.nbytes * (1 if t.format.is_dense else 2) for t in checkpoint.tensors.values())


def _present(weights: ModelWeights | LayerWeights, prefix: str, skip: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(weights):
        value = getattr(weights, field.name)
        if field.name != skip and value is not None:
            yield prefix + field.name, value


def _model_weights(packed: Packed, num_layers: int) -> ModelWeights:
    weights: Mapping[str, Any] = packed
    layers = []
    for i in range(num_layers):
        of_layer: dict[str, Any] = {f.name: weights.get(f"layers.{i}.{f.name}") for f in fields(LayerWeights)}
        layers.append(LayerWeights(**of_layer))
    return ModelWeights(weights["embedding"], layers, weights["final_norm"], weights.get("output"))
