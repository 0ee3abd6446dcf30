"""Defines precisions, which decide the type of stored numbers and how numbers are multiplied."""

from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

import numpy as np

from kernels.problems.architectures import ALL, Architectures

_FEW = 4
"""At most this many channels are stored without padding to 16 bytes, unless the numbers are bytes.
For an image's three channels most of that padding would be unused."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Describes how a tensor's numbers are stored. A quantized byte q stands for the number scale ·
    (q - zero_point)."""

    dtype: np.dtype[Any]
    scale: float = 1.0
    zero_point: int = 0

    @property
    def itemsize(self) -> int:
        """Return the size of one number in bytes."""
        return self.dtype.itemsize

    @property
    def element(self) -> str:
        """Return the C++ type of a number (see kernels/src/half.cuh and bytes.cuh)."""
        return _ELEMENTS[self.dtype]

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest q - zero_point that a byte q can hold."""
        return -self.zero_point, 255 - self.zero_point

    def byte(self, number: float) -> int:
        """Return the byte to which ONNX's QuantizeLinear converts a number."""
        steps = int(np.rint(np.float32(number) / np.float32(self.scale)))
        return min(max(steps + self.zero_point, 0), 255)

    def pitch(self, channels: int) -> int:
        """Return the distance between neighbouring pixels in a buffer, in numbers: `channels`,
        padded to whole vectors."""
        to = _FEW if channels <= _FEW and self.itemsize > 1 else 16 // self.itemsize
        return -(-channels // to) * to

    def __str__(self) -> str:
        if self.dtype != BYTE.dtype:
            return str(self.dtype)
        return f"{self.dtype} · {self.scale:.6g}, {self.zero_point} for 0"


FLOAT = Storage(np.dtype(np.float32))
HALF = Storage(np.dtype(np.float16))
BYTE = Storage(np.dtype(np.uint8))
"""Plain bytes. The bytes of a quantized value have a scale and a zero point."""

_ELEMENTS = {FLOAT.dtype: "float", HALF.dtype: "Half", BYTE.dtype: "Byte"}


def one_type(first: Storage, *others: Storage) -> Storage:
    """Return the storage format of the tensors. Raises ValueError if they have different
    formats."""
    if any(other != first for other in others):
        raise ValueError(
            f"all tensors must be stored as {first}, got {', '.join(map(str, others))}"
        )
    return first


@unique
class Precision(Enum):
    """Lists the precisions at which a network is computed. Sums are float32 at every precision
    except INT8.

    TF32 rounds the factors of a product to 10 bits of mantissa. TF32X3 replaces each product by
    three TF32 products. The error of a layer is then at most 1.7 times the error in FP32
    (docs/decisions/truncated-sums.md). TF32 and TF32X3 store float32. INT8 is for quantized models,
    whose files specify the 8-bit tensors and their scales. Sums of products of bytes are exact. The
    parts of the model that are not quantized are computed in FP16.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    TF32X3 = "3xtf32"
    FP16 = "fp16"
    INT8 = "int8"

    @property
    def stored(self) -> Storage:
        """Return the type in which activations and the weights of convolutions are stored."""
        return _STORED[self]

    @property
    def architectures(self) -> Architectures:
        """Return the architectures whose tensor cores support this precision. FP32 needs no tensor
        cores and runs on all architectures."""
        return _ARCHITECTURES[self]


_STORED = {
    Precision.FP32: FLOAT,
    Precision.TF32: FLOAT,
    Precision.TF32X3: FLOAT,
    Precision.FP16: HALF,
    Precision.INT8: BYTE,
}
_ARCHITECTURES = {
    Precision.FP32: ALL,
    Precision.TF32: Architectures(80),
    Precision.TF32X3: Architectures(80),
    Precision.FP16: Architectures(75),
    Precision.INT8: Architectures(75),
}
