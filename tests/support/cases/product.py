"""Lists cases of product.cu: every layout at every precision."""

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
"""For each precision, the errors of a sum in units of eps, in addition to one per product: a
rounding; on tensor cores, which truncate, the errors of their sums; and the part of a product that
3×TF32 omits."""


def product_case(
    name: str,
    a: StridedTensor,
    b: StridedTensor,
    y: StridedTensor,
    precision: Precision = Precision.FP32,
) -> KernelCase:
    """Return a case of matrices along the last two axes, which broadcast along the other axes."""
    a, b, y = (replace(each, stored=precision.stored) for each in (a, b, y))

    def check() -> Check:
        left, right = normal(a.shape, 1, a.stored), normal(b.shape, 2, b.stored)
        factors = [multiplied(each, precision) for each in (left, right)]
        products, terms = (np.matmul(*map(of, factors)) for of in (exact, size))
        inputs = {"a": placed(left, a), "b": placed(right, b)}
        return Check(inputs, y, products, (a.shape[-1] + _MORE[precision]) * EPS32 * terms)

    return KernelCase(name, (product_launch(a, b, y, precision),), check)


# q, k and v of 2 images, 3 heads, 37 tokens and 8 channels, as one product leaves them: the heads
# side by side in each token. And where they come back together, in tokens of 24 channels.
_TOKENS = rows(2, 37, 3, 3, 8)
_QUERIES = _TOKENS.transposed((0, 3, 1, 4))
_KEYS = StridedTensor(_QUERIES.shape, _QUERIES.strides, 24).transposed((0, 1, 3, 2))
_SEEN = rows(2, 37, 3, 8).transposed((0, 2, 1, 3))

SEVERAL_TILES = (rows(3, 2, 33, 70), rows(3, 2, 70, 65), rows(3, 2, 33, 65))
"""Sizes with more rows, columns and terms than one tile, and multiples of none of the tile's
sizes."""


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
