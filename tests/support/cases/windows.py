"""Lists cases of pooling.cu, lrn.cu, softmax.cu, top_k.cu and preprocess.cu."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.lrn import lrn_launch
from kernels.operations.pooling import global_pool_launch, pool_launch
from kernels.operations.preprocess import to_floats_launch
from kernels.operations.softmax import softmax_launch
from kernels.operations.top_k import ResultLayout, ScoreKind, top_k_launch
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import BYTE, HALF, Storage
from kernels.problems.window import Window
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, PlacedArray, placed
from tests.support.kernels.windows import window
from tests.support.tolerance import EPS32


def pool_case(
    name: str,
    kind: PoolKind,
    n: int,
    seen: Window,
    x: Pixels,
    y: Pixels,
    *,
    nan: bool = False,
) -> KernelCase:
    """Return a case of pooling. With `nan`, some numbers are NaN.

    The error of an average consists of one rounding per tap and one rounding of the quotient.
    """
    problem = PoolProblem(kind, x.channels, seen)
    x_layout, y_layout = x.strided(n, seen.input), y.strided(n, seen.output)

    def check() -> Check:
        numbers = normal(x_layout.shape, stored=x.stored).astype(np.float64)
        numbers.flat[::31] = np.nan if nan else numbers.flat[::31]
        mean_size = reference.pool(np.abs(numbers), problem)
        rounding = 0.0 if kind is PoolKind.MAX else EPS32 * (seen.kernel_volume + 2)
        expected = reference.pool(numbers, problem)
        return Check({"x": placed(numbers, x_layout)}, y_layout, expected, rounding * mean_size)

    return KernelCase(name, (pool_launch(problem, n, x, y),), check)


def global_pool_case(
    name: str, kind: PoolKind, n: int, spatial: Sequence[int], x: Pixels, y: Pixels
) -> KernelCase:
    """Return a case of pooling over whole images."""
    x_layout, y_layout = x.strided(n, spatial), y.strided(n, (1,) * len(spatial))

    def check() -> Check:
        numbers = normal(x_layout.shape, stored=x.stored).astype(np.float64)
        rounding = 0.0 if kind is PoolKind.MAX else EPS32 * (prod(spatial) + 2)
        bound = rounding * reference.global_pool(np.abs(numbers), kind)
        expected = reference.global_pool(numbers, kind)
        return Check({"x": placed(numbers, x_layout)}, y_layout, expected, bound)

    return KernelCase(name, (global_pool_launch(kind, n, prod(spatial), x, y),), check)


def lrn_case(
    name: str, x: Pixels, y: Pixels, size: int, alpha: float, beta: float, bias: float
) -> KernelCase:
    """Return a case of LRN on 2 images of 3×4 pixels. The error of powf is at most 4 units in the
    last place (CUDA)."""
    x_layout, y_layout = x.strided(2, (3, 4)), y.strided(2, (3, 4))

    def check() -> Check:
        numbers = normal(x_layout.shape, stored=x.stored).astype(np.float64)
        expected = reference.lrn(numbers, size, alpha, beta, bias)
        bound = EPS32 * (size + 8) * np.abs(expected)
        return Check({"x": placed(numbers, x_layout)}, y_layout, expected, bound)

    launch = lrn_launch(x, y, 24, size=size, alpha=alpha, beta=beta, bias=bias)
    return KernelCase(name, (launch,), check)


def softmax_case(
    name: str, x: StridedTensor, y: StridedTensor, axis: int, log: bool, shift: float = 0.0
) -> KernelCase:
    """Return a case of softmax.

    exp converts the rounding error of its argument, eps · |x - max|, into a relative error.
    """

    def check() -> Check:
        of = x.stored.dtype.type
        numbers = of(8) * normal(x.shape, stored=x.stored) + of(shift)
        numbers = numbers.astype(np.float64)
        expected = reference.softmax(numbers, axis - 1, log)
        rounding = EPS32 * (float(np.ptp(numbers)) + x.shape[axis] + 8)
        bound = rounding * (1.0 if log else expected) + 2.0**-126
        return Check({"x": placed(numbers, x)}, y, expected, bound)

    return KernelCase(name, (softmax_launch(x, y, axis, log),), check)


def top_k_case(
    name: str,
    x: StridedTensor,
    kind: ScoreKind,
    *,
    few: bool = False,
    one: float = 0.0,
    flags: Sequence[int] = (),
) -> KernelCase:
    """Return a case that ranks scores. One element of x is set to `one`, and the images have the
    given flags. With `few`, many scores are equal, and some are -0."""
    n, classes = x.shape
    results = ResultLayout(n, classes)
    y = StridedTensor.contiguous((n, results.pitch))

    def check() -> Check:
        if x.stored.dtype == BYTE.dtype:
            numbers = np.random.default_rng(0).integers(0, 256, x.shape, np.uint8)
        else:
            numbers = x.stored.dtype.type(4) * normal(x.shape, stored=x.stored)
        if few:
            numbers = np.round(numbers / x.stored.dtype.type(4)) * x.stored.dtype.type(-1)
        numbers[0, classes // 2] = one
        wide = numbers.astype(np.float64)
        if x.stored.dtype == BYTE.dtype:
            wide = reference.dequantize(numbers, x.stored, np.dtype(np.float32)).astype(np.float64)
        # As in softmax, exp(x - m) is rounded. Its relative error comes from x - m and from the
        # sum.
        rounding = EPS32 * (float(np.ptp(wide[np.isfinite(wide)])) + classes + 8)
        with np.errstate(invalid="ignore"):  # infinity - infinity
            scores = reference.softmax(wide, 0) if kind is ScoreKind.SOFTMAX else wide
        expected = reference.top_k(scores, results.k, logits=kind is ScoreKind.LOGITS)
        computed = {
            ScoreKind.PROBABILITIES: [],
            ScoreKind.LOGITS: [slice(classes + results.k, -1)],
            ScoreKind.SOFTMAX: [slice(classes), slice(classes + results.k, -1)],
        }
        bound = np.zeros_like(expected)
        for columns in computed[kind]:
            bound[:, columns] = rounding * expected[:, columns]
        inputs = {"x": placed(numbers, x)}
        if flags:
            inputs["flags"] = PlacedArray(np.array(flags, np.int32))
            expected[:, -1] += flags
        return Check(inputs, y, expected, bound)

    return KernelCase(name, (top_k_launch(x, kind, has_flags=bool(flags)),), check)


def pixels_case(name: str, channels: int, y: Pixels) -> KernelCase:
    """Return a case of 2 images of 9×31 uint8 pixels, with multipliers and offsets like
    ImageNet's."""
    layout = y.strided(2, (9, 31))

    def check() -> Check:
        images = np.random.default_rng(0).integers(0, 256, (2, 9, 31, channels), np.uint8)
        multiplier, offset = normal((channels,), 1), normal((channels,), 2)
        product = images * multiplier.astype(np.float64)
        expected, bound = np.zeros((2, *layout.shape[1:])), np.zeros((2, *layout.shape[1:]))
        expected[:, :channels] = (product + offset).transpose(0, 3, 1, 2)
        bound[:, :channels] = EPS32 * (np.abs(product) + np.abs(offset)).transpose(0, 3, 1, 2)
        inputs = {
            "images": PlacedArray(images),
            "multiplier": PlacedArray(multiplier),
            "offset": PlacedArray(offset),
        }
        return Check(inputs, layout, expected, bound)

    return KernelCase(name, (to_floats_launch(channels, 2, 9 * 31, y),), check)


def _ceil(seen: Window, output: tuple[int, ...]) -> Window:
    """Return the window with the output size of ONNX's `ceil_mode`. In this mode, the last windows
    extend beyond the padding."""
    return replace(seen, output=output)


_8, _5 = Pixels(8, 8), Pixels(5, 7, offset=1)
_ALEXNET = window((13, 13), (3, 3), strides=(2, 2))
_RESNET = window((12, 12), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
_SAME = window((6, 7), (3, 3), pads=(1, 1, 1, 1))
_UNEVEN = window((9, 7), (3, 2), strides=(2, 3), pads=(1, 1, 2, 0), dilations=(2, 1))
_GOOGLENET = _ceil(window((14, 14), (3, 3), strides=(2, 2)), (7, 7))
_PADDED_CEIL = _ceil(window((6, 6), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (4, 4))
_C3D = window((4, 6, 6), (2, 2, 2), strides=(2, 2, 2))
_UNEVEN_3D = window((3, 5, 4), (2, 3, 2), strides=(1, 2, 1), pads=(1, 0, 1, 0, 2, 0))

_POOLS = (
    ("as in AlexNet", _ALEXNET, 2, _8, _8),
    ("as in ResNet", _RESNET, 2, _8, _8),
    ("at stride 1, into a channel slice", _SAME, 1, _8, Pixels(8, 24, offset=8)),
    ("from a channel slice", _SAME, 1, Pixels(8, 24, offset=8), _8),
    ("uneven in everything", _UNEVEN, 2, _5, Pixels(5, 5)),
    ("ceil_mode, as in GoogLeNet", _GOOGLENET, 1, _8, _8),
    ("ceil_mode beyond the padding", _PADDED_CEIL, 2, _8, _8),
    ("in 3-D, as in C3D", _C3D, 2, _8, _8),
    ("in 3-D, uneven", _UNEVEN_3D, 2, _5, _5),
)

_SCORES = Storage(BYTE.dtype, float(np.float32(0.0731)), 99)

WINDOW_CASES = (
    *(pool_case(name, kind, n, seen, x, y) for kind in PoolKind for name, seen, n, x, y in _POOLS),
    *(pool_case("of NaN", kind, 1, _SAME, _8, _8, nan=True) for kind in PoolKind),
    *(
        global_pool_case(name, kind, n, spatial, x, y)
        for kind in (PoolKind.MAX, PoolKind.AVERAGE)
        for name, n, spatial, x, y in (
            ("of 7×7", 2, (7, 7), Pixels(64, 64), Pixels(64, 64)),
            ("of channels that fill no warp", 1, (13, 13), Pixels(40, 44, 4), Pixels(40, 40)),
            ("of fewer pixels than warps", 2, (1, 3), Pixels(5, 8), Pixels(5, 8)),
            ("in 3-D", 2, (2, 3, 3), Pixels(8, 8), Pixels(8, 12, 4)),
        )
    ),
    lrn_case("as in AlexNet", Pixels(16, 16), Pixels(16, 16), 5, 1e-4, 0.75, 1.0),
    lrn_case("into a slice", Pixels(6, 8), Pixels(6, 16, 9), 3, 0.5, 0.75, 2.0),
    lrn_case("of an even size, past both ends", Pixels(3, 3), Pixels(3, 3), 8, 0.3, 0.5, 1.0),
    lrn_case("of size 1", Pixels(4, 4), Pixels(4, 4), 1, 1.0, 1.0, 1.0),
    *(
        softmax_case(name, x, y, axis, log, shift)
        for log in (False, True)
        for name, x, y, axis, shift in (
            (
                "of classes",
                StridedTensor.contiguous((3, 1000)),
                StridedTensor.contiguous((3, 1000)),
                1,
                0.0,
            ),
            (
                "of ten classes",
                StridedTensor.contiguous((2, 10)),
                StridedTensor.contiguous((2, 10)),
                1,
                0.0,
            ),
            (
                "of a row a little longer than a block",
                *(StridedTensor.contiguous((1, 257)),) * 2,
                1,
                0.0,
            ),
            ("of large scores", *(StridedTensor.contiguous((2, 40)),) * 2, 1, 5e3),
            (
                "along channels",
                Pixels(6, 8).strided(2, (3, 5)),
                Pixels(6, 6).strided(2, (3, 5)),
                1,
                0.0,
            ),
            ("along rows", *(Pixels(3, 4).strided(2, (5, 4)),) * 2, 2, 0.0),
            ("along long columns", *(Pixels(2, 3).strided(2, (2, 130)),) * 2, 3, 0.0),
        )
    ),
    *(
        top_k_case(name, x, kind, few=few)
        for kind in ScoreKind
        for name, x, few in (
            ("of 1000 classes", StridedTensor.contiguous((2, 1000)), False),
            ("of many equals", StridedTensor((3, 1000), (1004, 1)), True),
            ("of ten classes", StridedTensor((8, 10), (12, 1)), False),
            ("of one class", StridedTensor((2, 1), (4, 1)), False),
            ("of more classes than threads", StridedTensor.contiguous((1, 2077)), True),
            ("of 1000 classes in halves", StridedTensor((2, 1000), (1008, 1), stored=HALF), False),
            (
                "of 1000 classes in bytes",
                StridedTensor((2, 1000), (1008, 1), stored=_SCORES),
                False,
            ),
        )
    ),
    *(
        top_k_case(f"of one {one}", StridedTensor.contiguous((2, 1000)), ScoreKind.SOFTMAX, one=one)
        for one in (np.inf, -np.inf, np.nan)
    ),
    top_k_case(
        "of images with flags",
        StridedTensor((4, 10), (12, 1)),
        ScoreKind.LOGITS,
        flags=(0, 1, 127, 64),
    ),
    pixels_case("padded to 4 channels", 3, Pixels(4, 4)),
    pixels_case("not padded", 3, Pixels(3, 3)),
    pixels_case("grey, padded", 1, Pixels(4, 4)),
    pixels_case("grey", 1, Pixels(1, 1)),
    pixels_case("padded to 8 channels of a wider pixel", 3, Pixels(8, 12, 4)),
)
