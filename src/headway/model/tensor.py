"""A tensor as it lies in a checkpoint, whichever the file format: a name, a shape, a storage format and raw bytes."""

import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError, ModelNotFound


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """``block_size`` weights of a row share ``block_bytes`` bytes; dense formats have blocks of one."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def is_dense(self) -> bool:
        return self.block_size == 1

    def num_bytes(self, shape: tuple[int, ...]) -> int | None:
        """Bytes of a tensor of this shape, or None when its rows are not a whole number of blocks."""
        weights = math.prod(shape)
        row = shape[-1] if shape else 1
        return None if row % self.block_size else weights // self.block_size * self.block_bytes


FORMATS = {
    name: TensorFormat(name, block_size, block_bytes)
    for name, block_size, block_bytes in (
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q8_0", 32, 34),
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
    )
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``data`` is a read-only view [bytes] of the mapped ``file``; ``shape`` has rows (outputs) first, columns last."""

    name: str
    shape: tuple[int, ...]
    format: TensorFormat
    data: NDArray[np.uint8]
    file: str

    @property
    def num_weights(self) -> int:
        return math.prod(self.shape)


def map_file(path: Path) -> mmap.mmap:
    """The file, mapped for reading. It stays mapped until the last array made from it is gone."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: there is no such file or folder") from None
    except ValueError:
        raise CheckpointError(f"{path}: the file is empty; get a sound copy of it") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def check_no_overlap(file: str, extents: Iterable[tuple[int, int, str]]) -> None:
    """``extents`` are (start, end, tensor name); two tensors that share bytes are a damaged or hostile file."""
    last_end, last_name = 0, ""
    for start, end, name in sorted(extents):
        if start < last_end:
            raise CheckpointError(f"{file}: tensors {last_name!r} and {name!r} overlap; get a sound copy of the file")
        last_end, last_name = end, name


def is_finite(values: NDArray[np.generic], is_bf16: bool = False) -> bool:
    """No infinity or NaN in a float32, float16 or (as uint16) bfloat16 array.

    Read as integers, infinities and NaNs are the largest of each sign: exponent bits all ones. Two maxima find them
    without a temporary, at about the speed of memory.
    """
    if values.size == 0:
        return True
    if values.dtype.itemsize == 4:
        return bool(values.view(np.int32).max() < 0x7F800000 and values.view(np.uint32).max() < 0xFF800000)
    positive, negative = (0x7F80, 0xFF80) if is_bf16 else (0x7C00, 0xFC00)
    return bool(values.view(np.int16).max() < positive and values.view(np.uint16).max() < negative)
