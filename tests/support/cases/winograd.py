"""Lists cases of winograd.cu. Every layer has a case for every tile and set of points."""

from collections.abc import Iterator

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.split_sum import WinogradConfig
from kernels.convolution.winograd import TILES, WinogradConv
from kernels.problems.activation import RELU
from kernels.winograd.matrices import Points
from tests.support.cases.conv import conv_case
from tests.support.cases.winograd_nonfused import LAYERS, LAYERS_3D
from tests.support.kernels.conv_layers import UNCLAMPED_LAYER, Layer, dense, filled, odd, within
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import conv_problem, window

F2, F4, F2_5, F2_3D = (
    WinogradConv(m, r, axes) for m, r, axes in ((2, 3, 2), (4, 3, 2), (2, 5, 2), (2, 3, 3))
)

LAYERS_3 = (
    *LAYERS,
    Layer(
        "of several blocks",
        conv_problem(7, 12, 70, window((9, 6), (3, 3), pads=(1, 0, 1, 1))),
        within(12),
        dense(70),
        filled(70),
        True,
        RELU,
    ),
)
"""Layers for all Winograd algorithms. Some have more tiles than fit into a block."""

LAYERS_5 = (
    Layer(
        "as in GoogLeNet, into a slice",
        conv_problem(2, 16, 32, window((7, 6), (5, 5), pads=(2, 2, 2, 2))),
        dense(16),
        within(32),
        activation=RELU,
    ),
    Layer(
        "padded unevenly",
        conv_problem(3, 21, 37, window((6, 5), (5, 5), pads=(3, 0, 1, 4))),
        odd(21),
        filled(37),
        odd(37),
    ),
    Layer(
        "of many channels",
        conv_problem(1, 70, 34, window((4, 4), (5, 5), pads=(2,) * 4)),
        dense(70),
        filled(34),
        filled(34),
        False,
        in_place=True,
    ),
)

LAYERS_3X3X3 = (
    *LAYERS_3D,
    Layer(
        "of several blocks",
        conv_problem(3, 21, 37, window((3, 5, 4), (3, 3, 3), pads=(1,) * 6)),
        filled(21),
        within(37),
        odd(37),
        True,
        RELU,
    ),
)

_SPLITS = (1, 2, 3, 5)


def _cases(algorithm: WinogradConv, layers: tuple[Layer, ...]) -> Iterator[KernelCase]:
    """Yield each layer with each tile, with the splits in rotation."""
    configs = [(points, tile) for points in algorithm.points for tile in TILES[algorithm.positions]]
    for row, layer in enumerate(layers):
        for column, (points, tile) in enumerate(configs):
            split = _SPLITS[(row + column) % len(_SPLITS)]
            config = WinogradConfig(points, tile, split)
            yield conv_case(layer, ConvChoice(algorithm, config))


WINOGRAD_CASES: tuple[KernelCase, ...] = (
    conv_case(
        UNCLAMPED_LAYER,
        ConvChoice(F2, WinogradConfig(Points.INTEGER, TILES[F2.positions][0], 2)),
    ),
    *_cases(F2, LAYERS_3),
    *_cases(F4, LAYERS_3),
    *_cases(F2_5, LAYERS_5),
    *(
        conv_case(layer, ConvChoice(F2_3D, WinogradConfig(Points.INTEGER, tile, split)))
        for layer in LAYERS_3X3X3
        for tile in TILES[F2_3D.positions]
        for split in _SPLITS
    ),
)
