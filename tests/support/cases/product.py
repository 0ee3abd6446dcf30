"""Lists cases of product.cu."""

import numpy as np

from kernels.layout.strided import StridedTensor
from kernels.operations.product import product_launch
from kernels.problems.precision import HALF
from tests.support.cases.conv import exact, size
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32


def product_case(name: str, a: StridedTensor, b: StridedTensor, y: StridedTensor) -> KernelCase:
    """Return a case of matrices along the last two axes, which the other axes repeat."""

    def check() -> Check:
        left, right = normal(a.shape, 1, a.stored), normal(b.shape, 2, b.stored)
        products, terms = (np.matmul(of(left), of(right)) for of in (exact, size))
        inputs = {"a": placed(left, a), "b": placed(right, b)}
        return Check(inputs, y, products, (a.shape[-1] + 1) * EPS32 * terms)

    return KernelCase(name, (product_launch(a, b, y),), check)


def _rows(*shape: int) -> StridedTensor:
    return StridedTensor.contiguous(shape)


# q, k and v of 2 images, 3 heads, 37 tokens and 8 channels, as one product leaves them: the heads
# side by side in each token. And where they come back together, in tokens of 24 channels.
_TOKENS = StridedTensor.contiguous((2, 37, 3, 3, 8))
_QUERIES = _TOKENS.transposed((0, 3, 1, 4))
_KEYS = StridedTensor(_QUERIES.shape, _QUERIES.strides, 24).transposed((0, 1, 3, 2))
_SEEN = _rows(2, 37, 3, 8).transposed((0, 2, 1, 3))

PRODUCT_CASES: tuple[KernelCase, ...] = (
    product_case("of whole tiles", _rows(2, 32, 64), _rows(2, 64, 32), _rows(2, 32, 32)),
    product_case("of one number", _rows(1, 1, 1), _rows(1, 1, 1), _rows(1, 1, 1)),
    product_case("past a tile", _rows(2, 33, 33), _rows(2, 33, 65), _rows(2, 33, 65)),
    product_case("of queries and keys", _QUERIES, _KEYS, _rows(2, 3, 37, 37)),
    product_case("of weights and values", _rows(2, 3, 37, 37), _QUERIES, _SEEN),
    product_case(
        "of channels beside pixels",
        _rows(2, 8, 49).transposed((0, 2, 1)),
        _rows(2, 8, 49),
        _rows(2, 49, 49).transposed((0, 2, 1)),
    ),
    product_case("by one matrix for all", _rows(3, 2, 5, 7), _rows(1, 7, 3), _rows(3, 2, 5, 3)),
    product_case(
        "of halves",
        *(StridedTensor.contiguous(shape, HALF) for shape in ((2, 35, 40), (2, 40, 6), (2, 35, 6))),
    ),
)
