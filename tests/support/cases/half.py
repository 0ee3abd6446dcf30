"""Lists fp16 cases of kernels whose other cases are in fp32. Inputs are float16, and outputs are
float16 or float."""

from dataclasses import replace

from kernels.convolution.algorithms import ConvChoice
from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import HALF, Precision
from kernels.problems.reduction import ReduceKind
from tests.support.cases.conv import DEPTHWISE, conv_case
from tests.support.cases.elementwise import (
    binary_case,
    fill_case,
    map_case,
    scale_shift_case,
    shuffle_case,
)
from tests.support.cases.linear import linear_case
from tests.support.cases.reductions import normalise_case, reduce_case, resample_case
from tests.support.cases.tensor_gemm import at_precision
from tests.support.cases.windows import (
    global_pool_case,
    lrn_case,
    pixels_case,
    pool_case,
    softmax_case,
)
from tests.support.kernels.conv_layers import DEPTHWISE_LAYERS, dense, filled, odd, within
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.windows import window


def _half(pixels: Pixels) -> Pixels:
    return replace(pixels, stored=HALF)


_WHOLE = _half(dense(8)).strided(2, (5, 7))
_SLICE = _half(within(8)).strided(2, (5, 7))
_ODD = _half(odd(5)).strided(2, (5, 7))
_FLOATS = dense(8).strided(2, (5, 7))
_SAME = window((6, 7), (3, 3), pads=(1, 1, 1, 1))
_ROW = StridedTensor.contiguous((2, 200), HALF)
_POINTS = _half(dense(1)).strided(2, (5, 7))
_TWICE = [[(0, 0.75), (1, 0.25)], [(0, 0.25), (1, 0.75)], [(1, 0.75), (2, 0.25)]]

HALF_CASES: tuple[KernelCase, ...] = (
    map_case("of halves", _WHOLE, _WHOLE, RELU),
    map_case("of halves, some NaN", _WHOLE, _SLICE, RELU, nan=True),
    map_case("of halves off vectors", _ODD, _ODD, RELU),
    map_case("of halves to floats", _SLICE, _FLOATS),
    map_case("of floats to halves", _FLOATS, _WHOLE),
    binary_case("of halves", BinaryOp.ADD, _WHOLE, _SLICE, _WHOLE, RELU),
    binary_case("of halves off vectors", BinaryOp.MUL, _ODD, _ODD, _ODD),
    binary_case(
        "of halves, a number a channel",
        BinaryOp.ADD,
        _WHOLE,
        StridedTensor.contiguous((8, 1, 1), HALF),
        _WHOLE,
    ),
    scale_shift_case("of halves", 2, (5, 7), _half(within(8)), _half(dense(8)), RELU),
    fill_case("halves", _SLICE, -1.5),
    shuffle_case("halves shuffled", _half(dense(12)), _half(within(12)), 3),
    *(
        pool_case("of halves", kind, 2, _SAME, _half(x), _half(y))
        for kind in PoolKind
        for x, y in ((dense(8), within(8)), (odd(5), dense(5)))
    ),
    *(
        global_pool_case("of halves", kind, 2, (7, 7), _half(filled(37)), _half(dense(37)))
        for kind in (PoolKind.MAX, PoolKind.AVERAGE)
    ),
    lrn_case("of halves", _half(dense(16)), _half(within(16)), 5, 1e-4, 0.75, 1.0),
    softmax_case("of halves", _ROW, _ROW, 1, False),
    softmax_case("of halves to floats", _ROW, StridedTensor.contiguous((2, 200)), 1, False),
    *(reduce_case("of halves", kind, _SLICE, _POINTS, [0]) for kind in ReduceKind),
    reduce_case("of halves, some NaN", ReduceKind.MAX, _ODD, _POINTS, [0], nan=True),
    reduce_case(
        "of rows of halves", ReduceKind.MEAN, _ROW, StridedTensor.contiguous((2, 1), HALF), [0]
    ),
    normalise_case("of halves", _WHOLE, _SLICE, (8, 1, 1), [0], activation=RELU),
    normalise_case("of halves off vectors", _ODD, _ODD, (5, 1, 1), [1, 2], mean=3.0),
    normalise_case("of groups of halves", _WHOLE, _WHOLE, (8, 1, 1), [0, 1, 2], groups=2),
    *(
        resample_case(f"of halves, {name}", (3, 3), (_TWICE, _TWICE), _half(x), y)
        for name, x, y in (
            ("into a slice", dense(8), _half(within(8))),
            ("off vectors", odd(5), _half(dense(5))),
        )
    ),
    pixels_case("to halves", 3, _half(dense(4))),
    pixels_case("to halves, padded", 3, _half(dense(8))),
    *(
        linear_case(
            f"of halves to {'half' if y.stored == HALF else 'float'}s", rows, x, y, True, RELU
        )
        for rows in (1, 2, 4, 8)
        for x, y in (
            (_half(dense(128)), _half(filled(10))),
            (_half(odd(37)), dense(21)),
        )
    ),
    *(
        conv_case(at, ConvChoice(DEPTHWISE, config))
        for layer in DEPTHWISE_LAYERS
        for at in [at_precision(layer, Precision.FP16)]
        for config in DEPTHWISE.configs(at.problem)
    ),
)
