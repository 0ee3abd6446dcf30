"""Checks a convolution on a device with whole numbers, so that the check needs no tolerance.

x, the filter and y are small integers. If the absolute values of the terms sum to less than 2^24,
float32 adds them without rounding, in any order. An algorithm that transforms data has rounding
errors, but these are far smaller than a half. An extra, missing or misplaced term changes y by an
integer. Therefore y is right if it rounds to the right integer.

Image i is the first image times a power of two and a sign. Such a factor adds no rounding error.
Therefore one reference is enough for every N, and images in the wrong order are detected. The
factors repeat after 128 images in float32, and after 8 images in float16 and in bytes. This keeps x
and y within the range of the type. float16 represents integers exactly up to 2048. The signs of the
terms are random, so the first image's y stays far below 2048. Bytes store the number 0 as 128. The
expected y is clamped to the range of bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import reference
from kernels.convolution.integer import requantization
from kernels.layout.operands import padded
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import BYTE, FLOAT, Storage

Floats = NDArray[np.floating[Any]]

_ZERO = 128
"""The byte that means 0 in x, and in the residual."""


@dataclass(frozen=True, eq=False)
class Exam:
    """Holds the operands with which a convolution is checked, and computes the expected result when
    it is first needed.

    Pixels have channels last, as on a device. Kernels must not use the padding of pixels to whole
    vectors. To detect such use, the padding is NaN, or for bytes a number larger than all numbers
    of x.
    """

    stored: Storage
    images: Mapping[str, NDArray[Any]]  # x, and the residual if it is projected: H×W×C, C padded
    weight: Floats  # K×(C/groups)×R×S
    bias: Floats  # K
    answer: Callable[[], Floats]  # what `expected` is, which may take a second

    @cached_property
    def expected(self) -> Floats:
        """Return the expected result for the first image, P×Q×K, without the bias."""
        return self.answer()

    @property
    def of_filters(self) -> Mapping[str, NDArray[Any]]:
        """Return the operands that have one number per filter: the bias or, for bytes, offset and
        scale."""
        if self.stored != BYTE:
            return {"bias": self.bias}
        offset, scale = requantization(
            self.weight.astype(np.int32),
            np.ones(1, np.float32),
            self.bias.astype(np.int64),
            Storage(BYTE.dtype, zero_point=_ZERO),
            BYTE,
        )
        return {"offset": offset, "scale": scale}

    def inputs(self, n: int) -> dict[str, NDArray[Any]]:
        """Return x, and the residual if it is projected, for n images. Each array is n×H×W×C."""
        zero = _ZERO if self.stored == BYTE else 0
        scales = _scales(n, self.stored)
        return {
            name: (np.stack([image * scale for scale in scales]) + zero).astype(self.stored.dtype)
            for name, image in self.images.items()
        }

    def fault(self, y: NDArray[Any]) -> str | None:
        """Compare y, N×P×Q×K with K padded, with the expected result. Return a description of the
        wrong elements, or None if y is right."""
        for index, (scale, image) in enumerate(zip(_scales(len(y), self.stored), y, strict=True)):
            expected = self.expected * scale + self.bias
            if self.stored == BYTE:
                expected = np.clip(expected, *BYTE.bounds)
            error = np.abs(image[..., : len(self.bias)] - expected)
            # Written so that NaN is an error too.
            if not error.max() < abs(scale) / 2:
                wrong = np.argwhere(~(error < abs(scale) / 2))
                *at, channel = map(int, wrong[0])
                return (
                    f"{len(wrong):,} of {error.size:,} elements of image {index} are wrong; the"
                    f" first, at {'x'.join(map(str, at))} of channel {channel}, is"
                    f" {image[*at, channel]:g} instead of {expected[*at, channel]:g}"
                )
        return None


def _scales(n: int, stored: Storage) -> NDArray[Any]:
    index = np.arange(n) % (128 if stored == FLOAT else 8)
    scales: Floats = (-1.0) ** index * 2.0 ** (index // 2)
    return scales.astype(np.int16 if stored == BYTE else stored.dtype)


@lru_cache(maxsize=2)
def exam_of(layer: ConvProblem) -> Exam:
    """Return the operands with which a convolution is checked and the expected result, both for one
    image."""
    rng = np.random.default_rng(1)
    numbers = np.array([-3, -2, -1, 1, 2, 3])  # no zeros: a missing term must change y
    shapes = {"x": (layer.c, *layer.window.input)}
    if layer.projection:
        shapes["residual"] = (layer.projection.c, *layer.projection.input)
    operands = {name: rng.choice(numbers, (1, *shape)) for name, shape in shapes.items()}
    weight = rng.choice([-1.0, 1.0], layer.filter_shape)
    exact = {name: operand.astype(np.float64) for name, operand in operands.items()}

    def answer() -> Floats:
        (y,) = reference.conv(exact["x"], weight, layer, residual=exact.get("residual"))
        return np.ascontiguousarray(np.moveaxis(y, 0, -1), np.float32)

    stored = layer.precision.stored
    return Exam(
        stored=stored,
        images={name: _pixels(x[0], stored) for name, x in operands.items()},
        weight=weight.astype(np.float32),
        bias=(rng.choice(numbers, layer.k) + (_ZERO if stored == BYTE else 0)).astype(np.float32),
        answer=answer,
    )


def _pixels(x: NDArray[np.integer[Any]], stored: Storage) -> NDArray[Any]:
    """Turn C×H×W into H×W×C, padded to 16 bytes."""
    missing = padded(len(x), 16 // stored.itemsize) - len(x)
    widths = [(0, 0)] * (x.ndim - 1) + [(0, missing)]
    last = np.moveaxis(x, 0, -1)
    if stored == BYTE:
        return np.pad(last.astype(np.int16), widths, constant_values=15)
    return np.pad(last.astype(stored.dtype), widths, constant_values=np.nan)
