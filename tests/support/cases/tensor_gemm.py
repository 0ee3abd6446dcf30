"""Lists cases of tensor_gemm.cu. Every layer has a case at every precision, and tiles rotate over
the cases."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.split_sum import MAX_CLUSTER, TileConfig
from kernels.convolution.tensor_gemm import TensorConv
from kernels.convolution.warpgroup_gemm import WarpgroupConv
from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import Precision
from tests.support.cases.conv import conv_case
from tests.support.kernels.conv_layers import (
    DIRECT_LAYERS,
    GEMM_LAYERS,
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

TENSOR, WARPGROUPS = TensorConv(), WarpgroupConv()


def _projecting(
    n: int, c: int, k: int, size: tuple[int, ...], projection: Projection
) -> ConvProblem:
    one = (1,) * len(size)
    problem = conv_problem(n, c, k, window(size, one))
    return replace(problem, precision=Precision.FP16, projection=projection)


PROJECTING_LAYERS = (
    Layer(
        "as at ResNet's start",
        _projecting(2, 16, 40, (5, 6), Projection(16, (5, 6), (1, 1))),
        dense(16),
        dense(40),
        dense(16),
        True,
        RELU,
    ),
    Layer(
        "where ResNet halves the size",
        _projecting(1, 24, 72, (5, 4), Projection(136, (9, 8), (2, 2))),
        dense(24),
        within(72),
        within(136),
        True,
        RELU,
    ),
    Layer(
        "of uneven channels",
        _projecting(3, 5, 7, (3, 4), Projection(3, (8, 4), (3, 1))),
        odd(5),
        odd(7),
        odd(3),
    ),
    Layer(
        "of more channels than a chunk has, in 3-D",
        _projecting(2, 9, 33, (2, 3, 2), Projection(70, (3, 3, 4), (2, 1, 2))),
        filled(9),
        dense(33),
        filled(70),
        False,
    ),
    Layer(
        "projected, with a NaN",
        _projecting(1, 12, 8, (4, 3), Projection(20, (4, 3), (1, 1))),
        dense(12),
        dense(8),
        dense(20),
        nan=True,
    ),
)
"""Layers with a projection. They are in fp16 until `at_precision` changes this, because fp32 has no
projections."""
PRECISIONS = (Precision.TF32, Precision.TF32X3, Precision.FP16)


def at_precision(layer: Layer, precision: Precision) -> Layer:
    """Return the layer at a precision."""
    stored = precision.stored
    return replace(
        layer,
        problem=replace(layer.problem, precision=precision),
        x=replace(layer.x, stored=stored),
        y=replace(layer.y, stored=stored),
        residual=layer.residual and replace(layer.residual, stored=stored),
    )


def _in_turn(by: TensorConv, precision: Precision) -> Iterator[KernelCase]:
    """Yield each layer with one tile and one split. All tiles and 5 splits are used in rotation."""
    for row, layer in enumerate(DIRECT_LAYERS + GEMM_LAYERS):
        at = at_precision(layer, precision)
        tiles = by.blocks_of(at.problem)
        split = 1 + (row + row // len(tiles)) % 5
        yield conv_case(at, ConvChoice(by, TileConfig(tiles[row % len(tiles)], split)))


def _projected(by: TensorConv, precision: Precision) -> Iterator[KernelCase]:
    """Yield each layer with three tiles, and the sum split into 1, 3 or 5 parts."""
    for row, layer in enumerate(PROJECTING_LAYERS):
        at = at_precision(layer, precision)
        tiles = by.blocks_of(at.problem)
        for number in range(3):
            config = TileConfig(tiles[(2 * row + number) % len(tiles)], 1 + 2 * number)
            yield conv_case(at, ConvChoice(by, config))


def _split(by: TensorConv, precision: Precision) -> Iterator[KernelCase]:
    """Yield one layer with each tile, each with another split of the sums. Then yield another layer
    with the last tile and unsplit sums."""
    at = at_precision(SPLIT_LAYER, precision)
    for split, tile in enumerate(by.blocks_of(at.problem), start=1):
        yield conv_case(at, ConvChoice(by, TileConfig(tile, split)))
    yield conv_case(at_precision(UNCLAMPED_LAYER, precision), ConvChoice(by, TileConfig(tile)))


def _clustered(layer: Layer, number: int) -> KernelCase:
    """Return a case whose blocks form clusters. The size and the tile depend on `number`."""
    tiles = WARPGROUPS.blocks_of(layer.problem)
    config = TileConfig(tiles[number % len(tiles)], 2 + number % (MAX_CLUSTER - 1), cluster=True)
    return conv_case(layer, ConvChoice(WARPGROUPS, config))


def _cases(by: TensorConv, precisions: Iterable[Precision]) -> tuple[KernelCase, ...]:
    return tuple(
        case
        for precision in precisions
        for cases in (_in_turn(by, precision), _projected(by, precision), _split(by, precision))
        for case in cases
    )


TENSOR_CASES = _cases(TENSOR, PRECISIONS)
CLUSTER_CASES = tuple(
    _clustered(at_precision(layer, precision), number)
    for precision in PRECISIONS
    for number, layer in enumerate(
        (*DIRECT_LAYERS, *GEMM_LAYERS, *PROJECTING_LAYERS, *[SPLIT_LAYER] * 7, UNCLAMPED_LAYER)
    )
)
WARPGROUP_CASES = (*_cases(WARPGROUPS, PRECISIONS), *CLUSTER_CASES)
