"""Lists cases of tma_gemm.cu. Tiles rotate over the layers, with single and grouped blocks. In some
cases, clusters of blocks add the parts of a split sum."""

from collections.abc import Iterator
from dataclasses import replace

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.split_sum import MAX_CLUSTER, TileConfig
from kernels.convolution.tma_gemm import TmaConv
from kernels.layout.pixels import Pixels
from kernels.problems.precision import Precision
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import PROJECTING_LAYERS, at_precision
from tests.support.kernels.conv_layers import (
    DIRECT_LAYERS,
    GEMM_LAYERS,
    SPLIT_LAYER,
    UNCLAMPED_LAYER,
    Layer,
    dense,
    within,
)
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import conv_problem, window

TMA = TmaConv()
PRECISIONS = (Precision.FP16, Precision.TF32)
TOGETHER = (1, 2, 4)
"""The numbers of blocks that may share copies."""

_3x3 = window((9, 15), (3, 3), pads=(1, 1, 1, 1))
_APART = window((19, 29), (3, 2), strides=(2, 2), dilations=(2, 3), pads=(1, 2, 3, 0))

SEVERAL_TILES = (
    Layer("of several tiles", conv_problem(2, 72, 136, _3x3), dense(72), within(136), dense(136)),
    Layer("of several tiles, apart", conv_problem(3, 40, 72, _APART), within(40), dense(72)),
    Layer(
        "of several tiles, pointwise",
        conv_problem(5, 264, 192, window((7, 9), (1, 1))),
        dense(264),
        dense(192),
    ),
)
"""Layers with several tiles of either factor, and with more chunks than shared memory holds."""


def at_16_bytes(layer: Layer) -> Layer:
    """Align the layer's factors to 16 bytes, as tensor copies need, and return the layer."""
    projected = layer.residual if layer.problem.projection else None
    return replace(
        layer, x=_moved(layer.x), residual=(projected and _moved(projected)) or layer.residual
    )


def _moved(pixels: Pixels) -> Pixels:
    to = 16 // pixels.stored.itemsize
    return replace(pixels, pitch=-(-pixels.pitch // to) * to, offset=-(-pixels.offset // to) * to)


def _in_turn(precision: Precision) -> Iterator[KernelCase]:
    """Yield each layer with one tile, one split, and groups of 1, 2 or 4 blocks. All three rotate.
    Pixels are aligned to 16 bytes. If a layer has another alignment, it is also yielded
    unchanged."""
    layers = (*DIRECT_LAYERS, *GEMM_LAYERS, *PROJECTING_LAYERS, *PROJECTING_LAYERS)
    at = (at_precision(layer, precision) for layer in layers)
    for row, layer in enumerate(each for each in at if TMA.supports(each.problem) is None):
        tiles = TMA.blocks_of(layer.problem)
        split = 1 + (row + row // len(tiles)) % 5
        together = TOGETHER[row % 3]
        cluster = row % 2 == 1 and 1 < split <= MAX_CLUSTER // together
        config = TileConfig(tiles[row % len(tiles)], split, cluster, together)
        aligned = at_16_bytes(layer)
        yield conv_case(aligned, ConvChoice(TMA, config))
        if aligned != layer:
            yield conv_case(layer, ConvChoice(TMA, config))


def _by_every_tile(precision: Precision) -> Iterator[KernelCase]:
    """Yield layers that fill several tiles, with each tile, in single and grouped blocks. Also
    yield other layers with split sums."""
    several = [at_16_bytes(at_precision(layer, precision)) for layer in SEVERAL_TILES]
    split, unclamped = (
        at_16_bytes(at_precision(layer, precision)) for layer in (SPLIT_LAYER, UNCLAMPED_LAYER)
    )
    for row, tile in enumerate(TMA.blocks_of(split.problem)):
        for number, together in enumerate(TOGETHER):
            whole = several[(row + number) % len(several)]
            yield conv_case(whole, ConvChoice(TMA, TileConfig(tile, together=together)))
            most = MAX_CLUSTER // together
            added_up = TileConfig(tile, max(2, most - row % 3), cluster=True, together=together)
            yield conv_case(split if row % 2 else whole, ConvChoice(TMA, added_up))
            # This comes last: only a part without chunks shows that a wait is missing.
            parts = TileConfig(tile, 2 + row, together=together)
            yield conv_case(split, ConvChoice(TMA, parts))
            if row == 0:
                config = TileConfig(tile, together=together)
                yield conv_case(unclamped, ConvChoice(TMA, config))


TMA_CASES: tuple[KernelCase, ...] = tuple(
    case
    for precision in PRECISIONS
    for cases in (_in_turn(precision), _by_every_tile(precision))
    for case in cases
)
