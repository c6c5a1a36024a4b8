"""Weights as they come out of a checkpoint, and as a backend repacks them into the order its kernels read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """``data`` [n, k]: float32, float16, or bfloat16 held as uint16 (``is_bf16``). Row n makes output n."""

    data: NDArray[np.generic]
    is_bf16: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    @property
    def format_name(self) -> str:
        return "bf16" if self.is_bf16 else {"float32": "f32", "float16": "f16"}[self.data.dtype.name]

    def to_float32(self) -> NDArray[np.float32]:
        """[n, k], exact."""
        if self.is_bf16:
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data.astype(np.float32)


@dataclass(frozen=True, slots=True)
class GroupQuantized:
    """n-bit integers in groups along k, with a scale and an optional minimum per group. GGUF formats are cases of it.

        W[n, k] = scale[n, g] * (q[n, k] - zero) + minimum[n, g],   g = k // group_size

    ``q`` uint8 [n, k] in 0 .. 2**bits - 1; ``scale`` [n, k / group_size], float16 where the format stores it so, else
    float32 (K-quants: a product of two stored numbers, exact in float32); ``minimum`` likewise, or None.
    ``zero`` is an integer constant of the format: Q4_0 8, Q5_0 16, Q6_K 32, Q8_0 128 (signed bytes plus 128), else 0.
    """

    q: NDArray[np.uint8]
    scale: NDArray[np.generic]
    minimum: NDArray[np.generic] | None
    bits: int  # 4, 5, 6 or 8
    group_size: int  # 16 or 32
    zero: int
    format_name: str  # "Q4_1"

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def to_float32(self) -> NDArray[np.float32]:
        """[n, k]: the values the format stands for."""
        n, k = self.q.shape
        q = self.q.reshape(n, k // self.group_size, self.group_size).astype(np.float32) - np.float32(self.zero)
        w = q * self.scale.astype(np.float32)[:, :, None]
        if self.minimum is not None:
            w += self.minimum.astype(np.float32)[:, :, None]
        return w.reshape(n, k)


Matrix = DenseMatrix | GroupQuantized


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] that a backend has repacked before; ``handle`` is what it made of it."""

    handle: Any
    shape: tuple[int, int]


AnyMatrix = Matrix | PackedMatrix


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """Matrices that share one input, stacked along the output: q, k and v, or gate and up, in one operand.

    They may have different formats. ``bias`` is float32 [sum of n] or None. ``role`` is what it does in the model
    ("qkv"), and names its operation in a profile.
    """

    parts: tuple[AnyMatrix, ...]
    bias: NDArray[np.float32] | None = None
    role: str = "linear"

    @property
    def num_outputs(self) -> int:
        return sum(part.shape[0] for part in self.parts)
