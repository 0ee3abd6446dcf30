"""Describes where the pixels of an NHWC (NDHWC) tensor lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernels.layout.strided import VECTOR, StridedTensor
from kernels.problems.precision import BYTE, FLOAT, Storage


@dataclass(frozen=True, slots=True)
class Pixels:
    """Describes N images of pixels with `channels` contiguous numbers each.

    A pixel starts `pitch` numbers after the previous pixel. `pitch` exceeds `channels` if pixels
    are padded, or if the channels are a slice of a wider pixel. If kernels must copy the padding
    too, the padding counts as channels. The tensor's address points to its first element, which
    lies `offset` numbers after a multiple of 16 bytes.
    """

    channels: int
    pitch: int
    offset: int = 0
    stored: Storage = FLOAT

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= self.pitch:
            raise ValueError(
                f"channels must be from 1 to {self.pitch}, the pitch; got {self.channels}"
            )

    def strided(self, n: int, spatial: Sequence[int]) -> StridedTensor:
        """Return the tensor as N×C×H×W (N×C×D×H×W), in ONNX's order of axes."""
        pixels = [prod(spatial[axis + 1 :]) * self.pitch for axis in range(len(spatial))]
        strides = (prod(spatial) * self.pitch, 1, *pixels)
        return StridedTensor((n, self.channels, *spatial), strides, self.offset, self.stored)


@dataclass(frozen=True, slots=True)
class Addend(Pixels):
    """Describes a tensor of pixels that is added to the sums of a quantized convolution.

    Before the addition, each sum is rounded to an 8-bit format, signed or unsigned: `ahead`.
    """

    ahead: Storage = BYTE


def vector_width(*tensors: Pixels) -> int:
    """Return how many channels a thread can move at once in all tensors: 4 or 1."""
    numbers = [
        number for tensor in tensors for number in (tensor.channels, tensor.pitch, tensor.offset)
    ]
    return VECTOR if all(number % VECTOR == 0 for number in numbers) else 1
