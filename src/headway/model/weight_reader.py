"""From stored tensors to ``ModelWeights``: every parameter found, in the right shape, and every tensor used."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError
from headway.model.architecture import Architecture, LayerWeights, ModelWeights
from headway.model.quant import read_matrix, read_vector
from headway.model.tensor import StoredTensor
from headway.model.tensor_names import Shape, TensorNames, layer_shapes, model_shapes
from headway.ops.weights import Matrix


@dataclass(frozen=True, slots=True)
class WeightReader:
    """``interleaved_rope``: the rows of q and k are in a Llama GGUF's order (``halves_order`` undoes it).
    ``norm_offset`` is added to norm vectors: 1 where Gemma's are stored minus one, as in safetensors."""

    where: str
    arch: Architecture
    tensors: Mapping[str, StoredTensor]
    names: TensorNames
    interleaved_rope: bool = False
    norm_offset: float = 0.0

    def read(self, unneeded: frozenset[str]) -> ModelWeights:
        """Checks names and shapes of all tensors first, then reads what is outside the layers; a layer's tensors are
        read when the layer is asked for. ``unneeded`` tensors may be there and are not read."""
        self._check(unneeded)
        names = self.names.model
        return ModelWeights(
            embedding=read_matrix(self.tensors[names["embedding"]]),
            layers=_LazyLayers(self),
            final_norm=self._vector("final_norm", names["final_norm"]),
            output=None if self.arch.tied_embeddings else read_matrix(self.tensors[names["output"]]),
        )

    def read_layer(self, index: int) -> LayerWeights:
        fields: dict[str, Any] = {}
        for role, shape in layer_shapes(self.arch).items():
            name = self.names.of_layer(index, role)
            fields[role] = self._matrix(role, name) if len(shape) == 2 else self._vector(role, name)
        return LayerWeights(**fields)

    def expected(self) -> dict[str, Shape]:
        """Name -> shape of every parameter."""
        shapes = {self.names.model[role]: shape for role, shape in model_shapes(self.arch).items()}
        for index in range(len(self.arch.layers)):
            for role, shape in layer_shapes(self.arch).items():
                shapes[self.names.of_layer(index, role)] = shape
        return shapes

    def _check(self, unneeded: frozenset[str]) -> None:
        expected = self.expected()
        for name, shape in expected.items():
            if name not in self.tensors:
                raise CheckpointError(f"{self.where}: tensor {name!r} is missing; get a complete copy of the model")
            if self.tensors[name].shape != shape:
                raise CheckpointError(
                    f"{self.where}: tensor {name!r} has the shape {self.tensors[name].shape}, but the configuration "
                    f"makes it {shape}; the file and its configuration do not belong together"
                )
        unused = [name for name in self.tensors if name not in expected and name not in unneeded]
        if unused:
            raise CheckpointError(
                f"{self.where}: {len(unused)} tensors are not part of a {self.arch.family} model, the first is "
                f"{unused[0]!r}. Leaving them out would change the answers, so the model is not loaded"
            )

    def _matrix(self, role: str, name: str) -> Matrix:
        return read_matrix(self.tensors[name], self._row_order(role))

    def _vector(self, role: str, name: str) -> NDArray[np.float32]:
        values = read_vector(self.tensors[name], self._row_order(role))
        if role.endswith("norm") and self.norm_offset:
            values += np.float32(self.norm_offset)
        return values

    def _row_order(self, role: str) -> NDArray[np.intp] | None:
        heads = {"q": self.arch.num_heads, "k": self.arch.num_kv_heads}.get(role.removesuffix("_bias"))
        if not self.interleaved_rope or heads is None:
            return None
        return halves_order(heads, self.arch.head_dim)


def halves_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Stored row to put at each row, to turn interleaved rope pairs (2i, 2i + 1) into half-split ones (i, i + d/2)."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def num_parameters(arch: Architecture) -> int:
    layer = sum(math.prod(shape) for shape in layer_shapes(arch).values())
    return len(arch.layers) * layer + sum(math.prod(shape) for shape in model_shapes(arch).values())


class _LazyLayers(Sequence[LayerWeights]):
    """Layers read from the file each time they are asked for, so that only one need be in memory at a time."""

    def __init__(self, reader: WeightReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader.arch.layers)

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...

    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self._reader.read_layer(i) for i in numbers]
        return self._reader.read_layer(numbers)
