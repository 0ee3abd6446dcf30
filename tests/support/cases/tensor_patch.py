"""Lists cases of tensor_patch.cu. Every layer has up to three cases, and tiles rotate over the
cases."""

from collections.abc import Iterator

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.tensor_patch import PatchConv
from kernels.problems.activation import RELU
from kernels.problems.precision import Precision
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import at_precision
from tests.support.kernels.conv_layers import (
    DIRECT_LAYERS,
    SPLIT_LAYER,
    UNCLAMPED_LAYER,
    Layer,
    dense,
    filled,
    odd,
    within,
)
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import conv_problem, window

PATCH = PatchConv()

_STEM = window((15, 17), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))

LAYERS = tuple(
    at_precision(layer, Precision.FP16)
    for layer in (
        *DIRECT_LAYERS,
        SPLIT_LAYER,
        UNCLAMPED_LAYER,
        Layer(
            "of several slices, the last one smaller",
            conv_problem(2, 140, 40, window((9, 11), (3, 3), pads=(1,) * 4)),
            within(140),
            dense(40),
            dense(40),
            True,
            RELU,
        ),
        Layer(
            "of several slices, at stride 2",
            conv_problem(1, 192, 72, window((9, 20), (3, 3), strides=(2, 2), pads=(1,) * 4)),
            dense(192),
            within(72),
        ),
        Layer(
            "of more images than a tile has",
            conv_problem(7, 16, 8, window((5, 7), (5, 5), pads=(2,) * 4)),
            dense(16),
            dense(8),
            dense(8),
            True,
            RELU,
            in_place=True,
        ),
        Layer(
            "of more pixels than a tile has",
            conv_problem(1, 24, 72, window((19, 37), (3, 3), pads=(1,) * 4)),
            filled(24),
            dense(72),
        ),
        Layer(
            "the first, with a NaN beside windows of odd rows",
            conv_problem(2, 3, 8, _STEM),
            filled(3),
            dense(8),
            nan=True,
        ),
        Layer(
            "the first, off vectors, of even rows of taps",
            conv_problem(
                1,
                4,
                12,
                window((9, 22), (5, 6), strides=(3, 4), dilations=(2, 1), pads=(2, 1, 0, 3)),
            ),
            odd(4),
            dense(12),
        ),
        Layer(
            "with a NaN, in slices that end within a chunk",
            conv_problem(1, 72, 8, window((6, 5), (2, 3), pads=(1, 1, 0, 1))),
            dense(72),
            dense(8),
            nan=True,
        ),
    )
)


def _cases() -> Iterator[KernelCase]:
    """Yield each layer with up to three tiles. Each tile has one of its splits, in rotation."""
    for row, layer in enumerate(each for each in LAYERS if PATCH.supports(each.problem) is None):
        configs = PATCH.configs(layer.problem)
        tiles = list(dict.fromkeys(config.tile for config in configs))
        for number in range(3 * row, 3 * row + min(3, len(tiles))):
            tile = tiles[number % len(tiles)]
            of_tile = [config for config in configs if config.tile == tile]
            yield conv_case(layer, ConvChoice(PATCH, of_tile[number % len(of_tile)]))


TENSOR_PATCH_CASES: tuple[KernelCase, ...] = tuple(_cases())
