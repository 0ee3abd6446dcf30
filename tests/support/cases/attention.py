"""Lists cases of attention.cu."""

import numpy as np

from kernels.layout.strided import StridedTensor
from kernels.operations.attention import attention_launch
from kernels.problems.precision import FLOAT, HALF, Storage
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32


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
) -> KernelCase:
    """Return a case whose scores all have `shift` more, which no share depends on.

    exp turns a score's error, eps · (depth + 4) · its terms, which is more than the rounding of its
    argument, into a relative error of a share; a sum of shares errs by a rounding a key.
    """
    launched = attention_launch(q, k, v, y, bias, scale)

    def check() -> Check:
        of = [normal(t.shape, i, t.stored) for i, t in enumerate((q, k, v), start=1)]
        if shift:  # one channel gives all scores the same
            of[0][..., 0], of[1][..., 0] = shift, 1
        wide_q, wide_k, wide_v = (each.astype(np.float64) for each in of)
        added = np.zeros((1, 1)) if bias is None else normal(bias.shape, 4, bias.stored)
        inputs = {key: placed(each, t) for key, each, t in zip("qkv", of, (q, k, v), strict=True)}
        if bias is not None:
            inputs["bias"] = placed(added, bias)
        added = added.astype(np.float64)
        expected = reference.attention(wide_q, wide_k, wide_v, added, scale)
        terms = abs(scale) * np.abs(wide_q) @ np.abs(wide_k).swapaxes(-1, -2) + np.abs(added)
        score = EPS32 * (q.shape[-1] + 4) * terms.max()
        size = reference.attention(wide_q, wide_k, np.abs(wide_v), added, scale)
        return Check(inputs, y, expected, (2 * score + EPS32 * (k.shape[-2] + 10)) * size)

    return KernelCase(name, (launched,), check)


def _rows(*shape: int, stored: Storage = FLOAT) -> StridedTensor:
    return StridedTensor.contiguous(shape, stored)


def _qkv(tokens: int, heads: int, depth: int, stored: Storage = FLOAT) -> list[StridedTensor]:
    """Return q, k, v of 2 images as one product leaves them, and y with the heads side by side."""
    whole = _rows(2, tokens, 3, heads, depth, stored=stored)
    q = whole.transposed((0, 3, 1, 4))
    apart = heads * depth
    k, v = (StridedTensor(q.shape, q.strides, part * apart, stored) for part in (1, 2))
    y = _rows(2, tokens, heads, depth, stored=stored).transposed((0, 2, 1, 3))
    return [q, k, v, y]


ATTENTION_CASES: tuple[KernelCase, ...] = (
    attention_case("of heads side by side", *_qkv(37, 3, 8), scale=0.3),
    attention_case("of halves", *_qkv(18, 2, 40, HALF), scale=0.2),
    attention_case("of large scores", *_qkv(17, 2, 8), shift=300.0),
    attention_case("of one token", *(_rows(1, 1, 4),) * 4),
    attention_case(
        "of 256 keys, with a bias for all heads",
        _rows(1, 2, 5, 36),
        _rows(1, 2, 256, 36),
        _rows(1, 2, 256, 7),
        _rows(1, 2, 5, 7),
        _rows(5, 256),
    ),
    attention_case(
        "of windows, each with a bias, wider values than a tile",
        _rows(3, 2, 33, 12),
        _rows(3, 2, 65, 12),
        _rows(3, 2, 65, 70),
        _rows(3, 2, 33, 70),
        _rows(2, 33, 65),
    ),
    attention_case(
        "of tokens beside channels",
        _rows(2, 128, 20).transposed((0, 2, 1)),
        _rows(2, 128, 20).transposed((0, 2, 1)),
        _rows(2, 16, 20).transposed((0, 2, 1)),
        _rows(2, 16, 20).transposed((0, 2, 1)),
    ),
)
