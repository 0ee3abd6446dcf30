"""Lists cases of elementwise.cu."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import (
    binary_launch,
    channel_shuffle_launch,
    fill_launch,
    map_launch,
    scale_shift_launch,
)
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32, Array

UFUNCS: Mapping[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
    BinaryOp.MAX: np.maximum,
    BinaryOp.MIN: np.minimum,
    BinaryOp.PRELU: reference.prelu,
}

_TINY = 2.0**-126  # below it float32 has fewer digits


def map_case(
    name: str,
    x: StridedTensor,
    y: StridedTensor,
    activation: Activation | None = None,
    *,
    in_place: bool = False,
    spread: float = 3.0,
    nan: bool = False,
) -> KernelCase:
    """Return a case of y = activation(x). x is normal with the deviation `spread`. With `nan`,
    every fifth element is NaN."""

    def check() -> Check:
        numbers = x.stored.dtype.type(spread) * normal(x.shape, stored=x.stored)
        numbers.flat[::5] = np.nan if nan else numbers.flat[::5]
        expected = reference.activate(numbers.astype(np.float64), activation)
        return Check(
            {"x": placed(numbers, x)},
            y,
            np.broadcast_to(expected, y.shape),
            np.broadcast_to(activation_error(numbers, expected, activation), y.shape),
            "x" if in_place else None,
        )

    return KernelCase(name, (map_launch(x, y, activation),), check)


def activation_error(x: Array, y: Array, activation: Activation | None) -> Array:
    """Return the allowed error of y = activation(x) for exact x. It consists of CUDA's documented
    errors and one rounding per step.

    CUDA C++ Programming Guide, mathematical functions: the largest errors are 2 units in the last
    place for expf and tanhf, 2 for erff and 4 for erfcf.
    """
    size = np.abs(y)
    if activation is None:
        return 0.0 * size
    a, b = abs(activation.a), abs(activation.b)
    match activation.kind:
        case ActivationKind.RELU:
            return 0.0 * size
        case ActivationKind.CLIP:
            return EPS32 * np.full(x.shape, max(a, b))  # the bounds are float32, too
        case ActivationKind.LEAKY_RELU:
            return 2 * EPS32 * size
        case ActivationKind.HARD_SIGMOID:
            return 2 * EPS32 * (a * np.abs(x) + b)
        case ActivationKind.HARD_SWISH:
            return 3 * EPS32 * np.abs(x) * (np.abs(x) / 6 + 0.5)
        case ActivationKind.SIGMOID:
            return 5 * EPS32 * size + _TINY
        case ActivationKind.SILU:
            return 6 * EPS32 * size + _TINY * np.abs(x)
        case ActivationKind.TANH | ActivationKind.ERF:
            return 3 * EPS32 * size
        case ActivationKind.GELU:
            # erfc(z) turns a relative error of its argument into one 2 z^2 as large; z^2 = x^2 / 2.
            return (8 + 2 * np.square(x)) * EPS32 * size + _TINY * np.abs(x)
        case ActivationKind.GELU_TANH:
            # exp turns the error of its argument, 4 roundings, into a relative one.
            argument = 2 * sqrt(2 / np.pi) * (np.abs(x) + 0.044715 * np.abs(x) ** 3)
            return (6 + 4 * argument) * EPS32 * size + _TINY * np.abs(x)
        case ActivationKind.ELU:
            return 3 * EPS32 * size + _TINY  # expm1f errs by 1
        case ActivationKind.SOFTPLUS:
            return 8 * EPS32 * size + _TINY  # expf, a quotient by 2, logf by 1, three roundings
        case ActivationKind.MISH:
            # x by none, softplus by 5, tanhf by 3, the product by 1
            return 9 * EPS32 * size + _TINY * np.abs(x)
        case ActivationKind.SQRT:
            return EPS32 * np.nan_to_num(size)


def binary_case(
    name: str,
    op: BinaryOp,
    a: StridedTensor,
    b: StridedTensor,
    y: StridedTensor,
    activation: Activation | None = None,
    *,
    in_place: bool = False,
) -> KernelCase:
    """Return a case of y = activation(a op b). No divisor is near 0. With `in_place`, y replaces
    a."""

    def check() -> Check:
        left, right = normal(a.shape, 1, a.stored), normal(b.shape, 2, b.stored)
        right += np.copysign(b.stored.dtype.type(0.5), right)
        exact = UFUNCS[op](left.astype(np.float64), right.astype(np.float64))
        expected = reference.activate(exact, activation)
        inputs = {"a": placed(left, a), "b": placed(right, b)}
        return Check(inputs, y, expected, EPS32 * np.abs(exact), "a" if in_place else None)

    return KernelCase(
        f"{name} {activation or ''}", (binary_launch(op, a, b, y, activation),), check
    )


def scale_shift_case(
    name: str, n: int, spatial: Sequence[int], x: Pixels, y: Pixels, activation: Activation | None
) -> KernelCase:
    """Return a case of y = activation(x · scale + shift), with one scale and one shift per
    channel."""
    x_layout, y_layout = x.strided(n, spatial), y.strided(n, spatial)
    vector = StridedTensor.contiguous((x.channels, *(1 for _ in spatial)))

    def check() -> Check:
        numbers, scale, shift = (
            normal(x_layout.shape, stored=x.stored),
            normal(vector.shape, 1),
            normal(vector.shape, 2),
        )
        wide = [each.astype(np.float64) for each in (numbers, scale, shift)]
        expected = reference.activate(wide[0] * wide[1] + wide[2], activation)
        bound = EPS32 * (np.abs(wide[0] * wide[1]) + np.abs(wide[2]))
        inputs = {
            "x": placed(numbers, x_layout),
            "scale": placed(scale, vector),
            "shift": placed(shift, vector),
        }
        return Check(inputs, y_layout, expected, bound)

    return KernelCase(
        name, (scale_shift_launch(x_layout, vector, vector, y_layout, activation),), check
    )


def fill_case(name: str, y: StridedTensor, value: float) -> KernelCase:
    """Return a case of y = value."""
    check = Check({}, y, np.full(y.shape, np.float32(value)), 0.0)
    return KernelCase(name, (fill_launch(y, value),), lambda: check)


def shuffle_case(name: str, x: Pixels, y: Pixels, groups: int) -> KernelCase:
    """Return a case of shuffled channels in 2 images of 3×5 pixels."""
    x_layout, y_layout = x.strided(2, (3, 5)), y.strided(2, (3, 5))

    def check() -> Check:
        numbers = normal(x_layout.shape, stored=x.stored)
        expected = reference.channel_shuffle(numbers, groups)
        return Check({"x": placed(numbers, x_layout)}, y_layout, expected, 0.0)

    return KernelCase(name, (channel_shuffle_launch(x_layout, y_layout, 1, groups),), check)


def _contiguous(*shape: int) -> StridedTensor:
    return StridedTensor.contiguous(shape)


def _moved(name: str, axes: Sequence[int], *shape: int) -> KernelCase:
    """Return a case that copies a transposed tensor into a contiguous tensor."""
    moved = _contiguous(*shape).transposed(axes)
    return map_case(name, moved, StridedTensor.contiguous(moved.shape))


_PARAMETERS = {
    ActivationKind.CLIP: (-0.7, 1.1),
    ActivationKind.LEAKY_RELU: (0.1, 0.0),
    ActivationKind.HARD_SIGMOID: (0.2, 0.5),
    ActivationKind.ELU: (1.7, 1.05),
}
_WHOLE = Pixels(8, 8).strided(2, (5, 7))
_ODD = Pixels(5, 7, offset=1).strided(2, (3, 5))
_SLICE = Pixels(8, 24, offset=8).strided(2, (5, 7))
# 3×5 pixels of a 5×7 image of 4 channels, one pixel in from its border
_INSIDE = StridedTensor((2, 4, 3, 5), (5 * 7 * 4, 1, 7 * 4, 4), offset=(7 + 1) * 4)

ELEMENTWISE_CASES = (
    *(
        map_case("of a whole tensor", _WHOLE, _WHOLE, Activation(kind, *_PARAMETERS.get(kind, ())))
        for kind in ActivationKind
    ),
    map_case("of bounds that cross", _WHOLE, _WHOLE, Activation(ActivationKind.CLIP, 1.0, -0.5)),
    map_case("in place", _WHOLE, _WHOLE, RELU, in_place=True),
    map_case("in place in a slice", _SLICE, _SLICE, RELU, in_place=True),
    map_case("that do not fall on vectors", _ODD, _ODD, RELU),
    *(
        map_case("of NaN", _WHOLE, _WHOLE, Activation(kind, *_PARAMETERS.get(kind, ())), nan=True)
        for kind in ActivationKind
    ),
    map_case("far out", _WHOLE, _WHOLE, Activation(ActivationKind.SIGMOID), spread=60.0),
    map_case("far out", _WHOLE, _WHOLE, Activation(ActivationKind.SILU), spread=60.0),
    map_case("far out", _WHOLE, _WHOLE, Activation(ActivationKind.GELU_TANH), spread=30.0),
    map_case("far out", _WHOLE, _WHOLE, Activation(ActivationKind.SOFTPLUS), spread=60.0),
    map_case("far out", _WHOLE, _WHOLE, Activation(ActivationKind.MISH), spread=60.0),
    map_case("more than a block", _contiguous(1028), _contiguous(1028)),
    map_case("of a channel slice into a tensor", _SLICE, _WHOLE),
    map_case("of a tensor into a channel slice", _WHOLE, _SLICE),
    map_case("one odd number", _contiguous(1), _contiguous(1)),
    map_case("NCHW to NHWC", _contiguous(2, 6, 3, 5), Pixels(6, 8).strided(2, (3, 5))),
    map_case("a weight repeated an image", _contiguous(1, 4, 6), _contiguous(3, 4, 6)),
    map_case("a number a row", _contiguous(6, 1), _contiguous(6, 8)),
    _moved("columns to rows", (1, 0), 34, 9),
    _moved("two leading axes", (1, 0, 2), 3, 5, 8),
    _moved("all axes reversed", (3, 2, 1, 0), 2, 3, 4, 5),
    _moved("five axes, vectors", (0, 3, 1, 2, 4), 2, 3, 2, 5, 4),
    _moved("five axes", (4, 2, 0, 3, 1), 2, 3, 4, 3, 5),
    shuffle_case("three groups shuffled", Pixels(12, 12), Pixels(12, 16, offset=4), 3),
    shuffle_case("groups of four, shuffled back", Pixels(12, 12), Pixels(12, 12), 4),
    *(binary_case("of two tensors", op, _WHOLE, _WHOLE, _WHOLE) for op in BinaryOp),
    binary_case("in place", BinaryOp.ADD, _WHOLE, _WHOLE, _WHOLE, RELU, in_place=True),
    binary_case("into a channel slice", BinaryOp.ADD, _WHOLE, _SLICE, _SLICE, RELU),
    binary_case("a slope a channel", BinaryOp.PRELU, _WHOLE, _contiguous(8, 1, 1), _WHOLE),
    binary_case("off vectors", BinaryOp.ADD, _ODD, _ODD, _ODD, RELU),
    binary_case("a number a channel", BinaryOp.ADD, _WHOLE, _contiguous(8, 1, 1), _WHOLE),
    binary_case(
        "a number an image and channel",
        BinaryOp.MUL,
        _WHOLE,
        Pixels(8, 8).strided(2, (1, 1)),
        _WHOLE,
    ),
    binary_case("a number a pixel", BinaryOp.MUL, _WHOLE, Pixels(1, 1).strided(2, (5, 7)), _WHOLE),
    binary_case("one number", BinaryOp.MUL, _contiguous(1), _WHOLE, _WHOLE),
    scale_shift_case("of a tensor", 2, (5, 7), Pixels(8, 8), Pixels(8, 8), RELU),
    scale_shift_case("from a slice", 2, (5, 7), Pixels(8, 24, 8), Pixels(8, 8), None),
    scale_shift_case("off vectors", 2, (3, 2, 5), Pixels(5, 7, 1), Pixels(5, 5), RELU),
    fill_case("a tensor", _WHOLE, 0.0),
    fill_case("a channel slice", _SLICE, -1.5),
    fill_case("off vectors", _ODD, 0.1),
    fill_case("the inside of a padded image", _INSIDE, 2.0),
)
