"""Lists cases of winograd_nonfused.cu. They cover every transform, and chunks of different
sizes."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.implicit_gemm import TILES
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TENSOR_TILES
from kernels.convolution.winograd_nonfused import NonfusedConfig, NonfusedWinogradConv
from kernels.problems.activation import RELU
from kernels.problems.precision import Precision
from kernels.winograd.matrices import Points
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import PRECISIONS, TENSOR, at_precision
from tests.support.kernels.conv_layers import (
    CLIP,
    UNCLAMPED_LAYER,
    Layer,
    dense,
    filled,
    odd,
    within,
)
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import conv_problem, window

F2, F4, F2_3D = (NonfusedWinogradConv(m, r=3, axes=axes) for m, axes in ((2, 2), (4, 2), (2, 3)))

_3x3 = window((6, 7), (3, 3), pads=(1, 1, 1, 1))

LAYERS = (
    Layer("as in VGG", conv_problem(1, 16, 24, _3x3), dense(16), dense(24), None, True, RELU),
    Layer(
        "as in ResNet",
        conv_problem(2, 36, 36, _3x3),
        dense(36),
        dense(36),
        dense(36),
        True,
        RELU,
        in_place=True,
    ),
    Layer(
        "the first, as in VGG",
        conv_problem(1, 3, 12, window((11, 10), (3, 3), pads=(1, 1, 1, 1))),
        filled(3),
        dense(12),
        None,
        True,
        RELU,
    ),
    Layer(
        "unpadded, from a slice into a slice",
        conv_problem(2, 8, 12, window((9, 6), (3, 3))),
        within(8),
        within(12),
        bias=False,
    ),
    Layer(
        "padded unevenly",
        conv_problem(3, 5, 7, window((5, 8), (3, 3), pads=(0, 2, 1, 0))),
        odd(5),
        odd(7),
        within(7),
        True,
        CLIP,
    ),
    Layer(
        "padded beyond the image",
        conv_problem(1, 4, 5, window((2, 3), (3, 3), pads=(5, 4, 6, 7))),
        dense(4),
        filled(5),
        odd(5),
    ),
    Layer(
        "of one output",
        conv_problem(8, 7, 1, window((3, 3), (3, 3))),
        filled(7),
        dense(1),
        dense(1),
        in_place=True,
    ),
    Layer(
        "of one pixel",
        conv_problem(5, 1, 6, window((1, 1), (3, 3), pads=(1,) * 4)),
        odd(1),
        dense(6),
    ),
    Layer(
        "of many channels",
        conv_problem(1, 70, 66, window((4, 4), (3, 3), pads=(1,) * 4)),
        dense(70),
        filled(66),
        filled(66),
        False,
    ),
    Layer(
        "of one filter and many tiles",
        conv_problem(2, 2, 1, window((23, 22), (3, 3), pads=(1,) * 4)),
        odd(2),
        within(1),
    ),
)

LAYERS_3D = (
    Layer(
        "as in C3D",
        conv_problem(1, 8, 12, window((3, 4, 5), (3, 3, 3), pads=(1,) * 6)),
        dense(8),
        dense(12),
        None,
        True,
        RELU,
    ),
    Layer(
        "padded unevenly",
        conv_problem(2, 5, 6, window((4, 3, 6), (3, 3, 3), pads=(1, 0, 2, 0, 2, 1))),
        within(5),
        odd(6),
        dense(6),
    ),
    Layer(
        "unpadded",
        conv_problem(3, 3, 4, window((3, 6, 4), (3, 3, 3))),
        odd(3),
        dense(4),
        dense(4),
        in_place=True,
    ),
)


def _chunk(algorithm: NonfusedWinogradConv, layer: Layer, number: int) -> int:
    """Return the number of tiles in a chunk. It is either all tiles, or so few that chunks begin in
    the middle of rows and images."""
    window = layer.problem.window
    total = layer.problem.n * prod(-(-p // algorithm.m) for p in window.output)
    parts = 1 + number % 3
    return total // parts + (parts > 1)


def _cases(
    layers: tuple[Layer, ...], *by: tuple[NonfusedWinogradConv, Points]
) -> Iterator[KernelCase]:
    """Yield each layer with each transform. The tiles and splits of the products, and the chunks,
    rotate."""
    for row, layer in enumerate(layers):
        for column, (algorithm, points) in enumerate(by):
            gemm = TileConfig(TILES[(row + column) % len(TILES)], 1 + (row + column) % 3)
            config = NonfusedConfig(points, gemm, _chunk(algorithm, layer, 2 * row + column))
            yield conv_case(layer, ConvChoice(algorithm, config))


def _on_tensor_cores(
    layers: tuple[Layer, ...], algorithm: NonfusedWinogradConv, precision: Precision
) -> Iterator[KernelCase]:
    """Yield each layer at a precision, with or without split sums. The tiles of tensor cores
    rotate. The rotation continues from one precision to the next, so that all tiles are used."""
    points = algorithm.configs(layers[0].problem)[0].points
    first = len(layers) * PRECISIONS.index(precision)
    for number, layer in enumerate(layers, first):
        at = at_precision(layer, precision)
        products = replace(at.problem, precision=algorithm.arithmetic(at.problem))
        tile = TENSOR.blocks_of(products)[number % len(TENSOR_TILES)]
        gemm = TileConfig(tile, 1 + number % 2)
        config = NonfusedConfig(points, gemm, _chunk(algorithm, layer, number))
        yield conv_case(at, ConvChoice(algorithm, config))


NONFUSED_CASES: tuple[KernelCase, ...] = (
    *_cases(LAYERS, (F2, Points.INTEGER), (F4, Points.INTEGER), (F4, Points.MIXED)),
    *_cases(LAYERS_3D, *[(F2_3D, Points.INTEGER)] * 2),
    *(
        case
        for algorithm, layers in ((F2, LAYERS), (F4, LAYERS), (F2_3D, LAYERS_3D))
        for precision in PRECISIONS
        for case in _on_tensor_cores(layers, algorithm, precision)
    ),
    *_cases((UNCLAMPED_LAYER,), (F2, Points.INTEGER)),
)
