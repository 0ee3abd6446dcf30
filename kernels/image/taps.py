"""Computes the taps of a resize: the input pixels and the weights from which each output pixel is
computed.

The taps are bit-identical to Pillow's taps. As in Pillow, the box is float32, and filters are
computed in float64. The sums have Pillow's order, and the weights have 22 fractional bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels.problems.interpolation import Interpolation

WEIGHT_BITS = 22

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Taps:
    """Holds the taps of an axis. Output pixel o is a weighted sum of `count` neighbouring input
    pixels. The first of these has the index `starts[o]`, and their weights are `weights[o]`.

    All of these pixels lie inside the image. If an output pixel needs fewer than `count` input
    pixels, the other weights are 0.
    """

    starts: NDArray[np.int32]
    weights: NDArray[np.int32]  # outputs × count

    @property
    def outputs(self) -> int:
        """Return the number of output pixels."""
        return len(self.starts)

    @property
    def count(self) -> int:
        """Return the number of taps of each output pixel."""
        return int(self.weights.shape[1])

    @property
    def span(self) -> tuple[int, int]:
        """Return the range of input pixels that the taps read: the first index, and the last index
        plus one."""
        return int(self.starts.min()), int(self.starts.max()) + self.count


def most_taps(size: float, outputs: int, interpolation: Interpolation) -> int:
    """Return an upper bound of the number of taps per output pixel when `size` pixels are resized
    to `outputs` pixels."""
    if interpolation is Interpolation.NEAREST:
        return 1
    support, _ = _FILTERS[interpolation]
    return math.ceil(2 * support * max(size / outputs, 1.0)) + 1


@lru_cache(maxsize=256)  # of what a place has room for: 32 MB at most
def taps_of(
    size: int,
    box: tuple[float, float],
    outputs: int,
    crop: tuple[int, int],
    interpolation: Interpolation,
) -> Taps:
    """Return the taps with which Pillow resizes the part `box` of an axis of `size` pixels.

    The part becomes `outputs` pixels. Return only the taps of the output pixels from `crop[0]` to
    `crop[1] - 1`.
    """
    first, last = np.float32(box[0]), np.float32(box[1])  # as Pillow's C code takes them
    begin, scale = float(first), float(last - first) / outputs
    if interpolation is Interpolation.NEAREST:
        starts, weights = _nearest(size, begin, scale, crop[1])
    elif (begin, float(last)) == (0, size) and outputs == size:  # Pillow leaves the axis as it is
        starts, weights = np.arange(*crop), np.full((crop[1] - crop[0], 1), 1 << WEIGHT_BITS)
    else:
        centres = begin + (np.arange(*crop, dtype=np.float64) + 0.5) * scale
        starts, weights = _antialiased(size, centres, scale, interpolation)
    taps = Taps(*(part[crop[0] - crop[1] :].astype(np.int32) for part in (starts, weights)))
    for array in (taps.starts, taps.weights):
        array.flags.writeable = False  # it is cached
    return taps


def _nearest(
    size: int, begin: float, scale: float, outputs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one tap per output pixel. As in Pillow, a position is computed by adding `scale` to
    the previous position, so the rounding errors are the same. Taps beyond the end of the axis have
    the weight 0."""
    places = np.cumsum([begin + scale * 0.5, *[scale] * (outputs - 1)]).astype(np.int64)
    weights = np.where(places < size, 1 << WEIGHT_BITS, 0)[:, None]
    return np.minimum(places, size - 1), weights


def _antialiased(
    size: int, centres: Floats, scale: float, interpolation: Interpolation
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    support, function = _FILTERS[interpolation]
    stretch = max(scale, 1.0)
    # Pillow rounds towards 0; the first is then raised to 0 anyway.
    starts = np.maximum((centres - support * stretch + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + support * stretch + 0.5).astype(np.int64), size)
    count = int((ends - starts).max())
    inputs = starts[:, None] + np.arange(count)
    factors = function((inputs - centres[:, None] + 0.5) * (1.0 / stretch))
    factors[inputs >= ends[:, None]] = 0.0
    sums = np.cumsum(factors, axis=1)[:, -1:]  # one after another, unlike np.sum
    factors = np.divide(factors, sums, out=factors, where=sums != 0)
    weights = np.trunc(factors * (1 << WEIGHT_BITS) + np.copysign(0.5, factors)).astype(np.int64)
    return _within(size, starts, weights)


def _within(
    size: int, starts: NDArray[np.int64], weights: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """If an output pixel's taps reach beyond the end of the axis, shift the taps back, so that the
    last tap reads the last pixel. Move the weights accordingly, so that each input pixel keeps its
    weight."""
    count = weights.shape[1]
    beyond = np.maximum(starts + count - size, 0)
    columns = np.arange(count) - beyond[:, None]
    moved = np.take_along_axis(weights, np.maximum(columns, 0), axis=1)
    return starts - beyond, np.where(columns >= 0, moved, 0)


def _box(x: Floats) -> Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _bilinear(x: Floats) -> Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _hamming(x: Floats) -> Floats:
    x = np.abs(x)
    # Pillow's constants are float32, whose sum is not 1; in the middle it takes 1.
    window = float(np.float32(0.54)) + float(np.float32(0.46)) * _each(math.cos, x * math.pi)
    return np.where(x == 0.0, 1.0, np.where(x < 1.0, _sinc(x) * window, 0.0))


def _bicubic(x: Floats) -> Floats:
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3), 0.0)


def _sinc(x: Floats) -> Floats:
    x = x * math.pi
    return np.where(x == 0.0, 1.0, _each(math.sin, x) / np.where(x == 0.0, 1.0, x))


def _each(function: Callable[[float], float], x: Floats) -> Floats:
    """Apply a function of the C library to each number, as Pillow does. NumPy's own function may
    differ in the last bit."""
    return np.fromiter(map(function, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


_FILTERS: dict[Interpolation, tuple[float, Callable[[Floats], Floats]]] = {
    Interpolation.BOX: (0.5, _box),
    Interpolation.BILINEAR: (1.0, _bilinear),
    Interpolation.HAMMING: (1.0, _hamming),
    Interpolation.BICUBIC: (2.0, _bicubic),
    Interpolation.LANCZOS: (3.0, _lanczos),
}
