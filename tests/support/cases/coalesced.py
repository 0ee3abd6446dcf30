"""Lists cases of coalesced.cu. Every layer has a case for every tile, fused or in two stages."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.coalesced import TILES, CoalescedConfig, CoalescedConv
from kernels.problems.activation import RELU
from tests.support.cases.conv import conv_case
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

COALESCED = CoalescedConv()

_1x1 = window((5, 9), (1, 1))
_3x3 = window((7, 7), (3, 3), pads=(1,) * 4)
_5x5 = window((6, 7), (5, 5), pads=(2,) * 4)

LAYERS = (
    Layer("as in VGG", conv_problem(1, 72, 40, _3x3), dense(72), dense(40), None, True, RELU),
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
    Layer("as in SqueezeNet, into a slice", conv_problem(3, 20, 68, _1x1), dense(20), within(68)),
    Layer(
        "as in GoogLeNet, into a slice",
        conv_problem(2, 24, 12, _5x5),
        within(24),
        within(12),
        activation=RELU,
    ),
    Layer(
        "of several tiles, padded unevenly",
        conv_problem(2, 5, 7, window((17, 15), (3, 3), pads=(0, 2, 1, 0))),
        odd(5),
        odd(7),
        within(7),
        True,
        CLIP,
    ),
    Layer(
        "5x5, padded beyond the image",
        conv_problem(1, 4, 5, window((2, 3), (5, 5), pads=(6, 4, 5, 7))),
        dense(4),
        filled(5),
        odd(5),
    ),
    Layer(
        "3x3, unpadded",
        conv_problem(2, 8, 3, window((10, 9), (3, 3))),
        filled(8),
        dense(3),
        dense(3),
        in_place=True,
    ),
    Layer(
        "1x1, padded",
        conv_problem(2, 9, 10, window((9, 6), (1, 1), pads=(1, 0, 2, 1))),
        filled(9),
        odd(10),
        within(10),
    ),
    Layer("of one output", conv_problem(3, 33, 1, window((5, 5), (5, 5))), odd(33), dense(1)),
    Layer("of one pixel", conv_problem(1, 1, 6, window((1, 1), (1, 1))), odd(1), dense(6)),
    Layer(
        "off vectors",
        conv_problem(1, 70, 66, window((3, 8), (1, 1))),
        filled(70),
        filled(66),
        odd(66),
    ),
    Layer("with a NaN", conv_problem(2, 13, 8, _3x3), filled(13), dense(8), nan=True),
    Layer("1x1 with a NaN", conv_problem(2, 6, 9, _1x1), filled(6), dense(9), nan=True),
)

SPLIT_LAYERS = tuple(
    Layer(
        "split",
        conv_problem(1, 150, 14, window((4, 9), (r, r), pads=(r // 2,) * 4)),
        filled(150),
        filled(14),
        filled(14),
        True,
        RELU,
    )
    for r in (1, 3, 5)
)


def ways(layer: Layer) -> Iterator[CoalescedConfig]:
    """Yield a configuration for every tile and every part of the filter that a block may process. A
    part is the whole filter, a row of taps, or one tap. All channels are in one strip."""
    r, s = layer.problem.window.kernel
    for taps in dict.fromkeys(((r, s), (1, s), (1, 1))):
        for tile in TILES[taps]:
            yield CoalescedConfig(tile, taps)


def _cases() -> Iterator[KernelCase]:
    """Yield cases that are alternately fused and in two stages. This includes blocks that process
    the whole filter, for which one stage would be enough."""
    for row, layer in enumerate(LAYERS):
        for column, config in enumerate(ways(layer)):
            fused = (row + column) % 2 == 0
            yield conv_case(layer, ConvChoice(COALESCED, replace(config, fused=fused)))
    for fused in (True, False):
        config = CoalescedConfig(TILES[1, 3][0], (1, 3), fused=fused)
        yield conv_case(UNCLAMPED_LAYER, ConvChoice(COALESCED, config))
    for layer in SPLIT_LAYERS:
        for config, (strips, fused) in product(ways(layer), ((2, True), (3, False))):
            split = replace(config, strips=strips, fused=fused)
            yield conv_case(layer, ConvChoice(COALESCED, split))


COALESCED_CASES: tuple[KernelCase, ...] = tuple(_cases())
