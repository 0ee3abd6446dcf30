"""Lists cases of attention.cu. Every layout has a case at every precision."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from kernels.layout.strided import StridedTensor
from kernels.operations.attention import attention_launch
from kernels.problems.precision import Precision
from tests.support.cases.conv import SPLIT, multiplied
from tests.support.kernels import reference
from tests.support.kernels.arrays import FLOATING, normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32, Array

_SHARE = {
    Precision.FP32: 0.0,
    Precision.TF32: 2.0**-11,
    Precision.TF32X3: SPLIT,
    Precision.FP16: 2.0**-11,
}
"""For each precision, the relative error of a share (an element of the softmax) when it is
multiplied by v."""

_LEAST = 2.0**-25
"""The largest share that becomes 0 in float16."""


def attention_case(
    name: str,
    q: StridedTensor,
    k: StridedTensor,
    v: StridedTensor,
    y: StridedTensor,
    bias: StridedTensor | None = None,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
    precision: Precision = Precision.FP32,
) -> KernelCase:
    """Return a case of attention. `shift` is added to all scores, which does not change the result.

    A share is an element of the softmax. The error of a score is eps · (depth + 4) · the sizes of
    the score's terms. exp converts it into a relative error of the share. The rounding of exp's
    argument is smaller than this error. The sum of the shares has one rounding per key. In 3×TF32,
    a part of each product is omitted.
    """
    q, k, v, y = (replace(each, stored=precision.stored) for each in (q, k, v, y))
    launched = attention_launch(q, k, v, y, bias, scale, precision=precision)

    def check() -> Check:
        of = [normal(t.shape, i, t.stored) for i, t in enumerate((q, k, v), start=1)]
        if shift:  # one channel adds the same number to all scores
            of[0][..., 0], of[1][..., 0] = shift, 1
        wide_q, wide_k, wide_v = (multiplied(each, precision).astype(np.float64) for each in of)
        added = np.zeros((1, 1)) if bias is None else normal(bias.shape, 4, bias.stored)
        inputs = {key: placed(each, t) for key, each, t in zip("qkv", of, (q, k, v), strict=True)}
        if bias is not None:
            inputs["bias"] = placed(added, bias)
        added = added.astype(np.float64)
        expected = reference.attention(wide_q, wide_k, wide_v, added, scale)
        terms = abs(scale) * np.abs(wide_q) @ np.abs(wide_k).swapaxes(-1, -2) + np.abs(added)
        split = SPLIT if precision is Precision.TF32X3 else 0.0
        score = (EPS32 * (q.shape[-1] + 4) + split) * terms.max(axis=-1, keepdims=True)
        size = reference.attention(wide_q, wide_k, np.abs(wide_v), added, scale)
        relative = 2 * score + EPS32 * (k.shape[-2] + 10) + _SHARE[precision]
        return Check(inputs, y, expected, relative * size + _vanishing(wide_v, precision))

    return KernelCase(name, (launched,), check)


def _vanishing(v: Array, precision: Precision) -> Array | float:
    """Return the largest error that arises when small shares become 0 in float16."""
    if precision is not Precision.FP16:
        return 0.0
    lost: Array = _LEAST * np.abs(v).sum(axis=-2, keepdims=True)
    return lost


def rows(*shape: int) -> StridedTensor:
    """Return a contiguous tensor."""
    return StridedTensor.contiguous(shape)


ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2))
"""The orders of axes: unchanged, heads next to each other, or all tokens of each channel."""


def lying(shape: tuple[int, ...], axes: tuple[int, ...]) -> StridedTensor:
    """Return a tensor of this shape without gaps. The axes are stored in the order `axes`."""
    lies = rows(*(shape[axis] for axis in axes))
    return lies.transposed([axes.index(axis) for axis in range(len(axes))])


def qkv(tokens: int, heads: int, depth: int, images: int = 2) -> list[StridedTensor]:
    """Return q, k and v, which are slices of one product's output. Also return y, in which the
    heads lie next to each other."""
    whole = rows(images, tokens, 3, heads, depth)
    q = whole.transposed((0, 3, 1, 4))
    apart = heads * depth
    k, v = (StridedTensor(q.shape, q.strides, part * apart) for part in (1, 2))
    y = rows(images, tokens, heads, depth).transposed((0, 2, 1, 3))
    return [q, k, v, y]


WINDOWS = (
    rows(3, 2, 33, 12),
    rows(3, 2, 65, 12),
    rows(3, 2, 65, 72),
    rows(3, 2, 33, 72),
    rows(2, 33, 65),
)
"""The shapes of q, k, v, y and the bias for windows with two heads. Queries, keys and channels are
more than fit into a tile."""


def _cases(precision: Precision) -> Iterator[KernelCase]:
    case = partial(attention_case, precision=precision)
    yield case("of heads side by side", *qkv(37, 3, 8), scale=0.3)
    yield case("of channels in several chunks", *qkv(66, 1, 72), scale=0.1)
    yield case("of large scores", *qkv(17, 2, 8), shift=300.0)
    yield case("of one token", *(rows(1, 1, 4),) * 4)
    yield case(
        "of 256 keys, with a bias for all heads",
        rows(1, 2, 5, 36),
        rows(1, 2, 256, 36),
        rows(1, 2, 256, 7),
        rows(1, 2, 5, 7),
        rows(5, 256),
    )
    yield case("of windows, each with a bias, wider values than a tile", *WINDOWS, scale=0.3)
    yield case(
        "of the largest heads",
        rows(1, 3, 128),
        rows(1, 197, 128),
        rows(1, 197, 160),
        rows(1, 3, 160),
        scale=0.1,
    )
    yield case(
        "of tokens beside channels",
        rows(2, 128, 20).transposed((0, 2, 1)),
        rows(2, 128, 20).transposed((0, 2, 1)),
        rows(2, 16, 20).transposed((0, 2, 1)),
        rows(2, 16, 20).transposed((0, 2, 1)),
    )


ATTENTION_CASES = tuple(case for precision in FLOATING for case in _cases(precision))
