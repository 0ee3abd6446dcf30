"""Lists cases of product.cu. Every layout has a case at every precision."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from kernels.layout.strided import StridedTensor
from kernels.operations.product import product_launch
from kernels.problems.precision import Precision
from tests.support.cases.attention import rows
from tests.support.cases.conv import SPLIT, exact, multiplied, size
from tests.support.kernels.arrays import FLOATING, normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32

_MORE = {
    Precision.FP32: 1,
    Precision.TF32: 4,
    Precision.TF32X3: 4 + SPLIT / EPS32,
    Precision.FP16: 4,
}
"""For each precision, the error of a sum in units of eps, in addition to 1 per product. It consists
of a rounding, on tensor cores of the errors of truncated sums, and in 3×TF32 of the omitted part of
a product."""


def product_case(
    name: str,
    a: StridedTensor,
    b: StridedTensor,
    y: StridedTensor,
    precision: Precision = Precision.FP32,
) -> KernelCase:
    """Return a case of matrix products along the last two axes. The other axes broadcast."""
    a, b, y = (replace(each, stored=precision.stored) for each in (a, b, y))

    def check() -> Check:
        left, right = normal(a.shape, 1, a.stored), normal(b.shape, 2, b.stored)
        factors = [multiplied(each, precision) for each in (left, right)]
        products, terms = (np.matmul(*map(of, factors)) for of in (exact, size))
        inputs = {"a": placed(left, a), "b": placed(right, b)}
        return Check(inputs, y, products, (a.shape[-1] + _MORE[precision]) * EPS32 * terms)

    return KernelCase(name, (product_launch(a, b, y, precision),), check)


# q, k and v of 2 images, 3 heads, 37 tokens and 8 channels, as one product writes them: each token
# has its heads next to each other. _SEEN is the layout of the result, in tokens of 24 channels.
_TOKENS = rows(2, 37, 3, 3, 8)
_QUERIES = _TOKENS.transposed((0, 3, 1, 4))
_KEYS = StridedTensor(_QUERIES.shape, _QUERIES.strides, 24).transposed((0, 1, 3, 2))
_SEEN = rows(2, 37, 3, 8).transposed((0, 2, 1, 3))

SEVERAL_TILES = (rows(3, 2, 33, 70), rows(3, 2, 70, 65), rows(3, 2, 33, 65))
"""Matrices with more rows, columns and terms than a tile. None of these numbers is a multiple of
the tile's."""


def _cases(precision: Precision) -> Iterator[KernelCase]:
    case = partial(product_case, precision=precision)
    yield case("of whole tiles", rows(2, 32, 64), rows(2, 64, 32), rows(2, 32, 32))
    yield case("of one number", rows(1, 1, 1), rows(1, 1, 1), rows(1, 1, 1))
    yield case("past a tile", *SEVERAL_TILES)
    yield case("of queries and keys", _QUERIES, _KEYS, rows(2, 3, 37, 37))
    yield case("of weights and values", rows(2, 3, 37, 37), _QUERIES, _SEEN)
    yield case(
        "of channels beside pixels",
        rows(2, 8, 49).transposed((0, 2, 1)),
        rows(2, 8, 49),
        rows(2, 49, 49).transposed((0, 2, 1)),
    )
    yield case("by one matrix for all", rows(3, 2, 5, 7), rows(1, 7, 3), rows(3, 2, 5, 3))


PRODUCT_CASES = tuple(case for precision in FLOATING for case in _cases(precision))
