"""Cases of tensor_gemm.cu: every layer at every precision, by each tile in turn."""

from collections.abc import Iterator
from dataclasses import replace

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.implicit_gemm import TileConfig
from kernels.convolution.tensor_gemm import TensorConv
from kernels.problems.precision import Precision
from tests.support.cases.conv import conv_case
from tests.support.kernels.conv_layers import DIRECT_LAYERS, GEMM_LAYERS, SPLIT_LAYER, Layer
from tests.support.kernels.kernel_case import KernelCase

TENSOR = TensorConv()
PRECISIONS = (Precision.TF32, Precision.TF32X3, Precision.FP16)


def at_precision(layer: Layer, precision: Precision) -> Layer:
    """The layer, computed at a precision."""
    stored = precision.stored
    return replace(
        layer,
        problem=replace(layer.problem, precision=precision),
        x=replace(layer.x, stored=stored),
        y=replace(layer.y, stored=stored),
        residual=layer.residual and replace(layer.residual, stored=stored),
    )


def _in_turn(precision: Precision) -> Iterator[KernelCase]:
    """Each layer by one tile and split, so that all tiles and all of 5 splits come by."""
    for row, layer in enumerate(DIRECT_LAYERS + GEMM_LAYERS):
        at = at_precision(layer, precision)
        tiles = TENSOR.tiles(at.problem)
        config = TileConfig(tiles[row % len(tiles)], 1 + row % 5)
        yield conv_case(at, ConvChoice(TENSOR, config))


def _split(precision: Precision) -> Iterator[KernelCase]:
    """A layer by each tile."""
    at = at_precision(SPLIT_LAYER, precision)
    for split, tile in enumerate(TENSOR.tiles(at.problem), start=1):
        yield conv_case(at, ConvChoice(TENSOR, TileConfig(tile, split)))


TENSOR_CASES: tuple[KernelCase, ...] = tuple(
    case
    for precision in PRECISIONS
    for cases in (_in_turn(precision), _split(precision))
    for case in cases
)
