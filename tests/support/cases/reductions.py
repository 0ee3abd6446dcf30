"""Lists cases of reduce.cu, normalise.cu and resample.cu."""

from collections.abc import Sequence

import numpy as np

from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.normalise import normalise_launch
from kernels.operations.reduce import reduce_launch
from kernels.operations.resample import resample_launch
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.reduction import ReduceKind
from tests.support.kernels import reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, placed
from tests.support.tolerance import EPS32


def reduce_case(
    name: str,
    kind: ReduceKind,
    x: StridedTensor,
    y: StridedTensor,
    axes: Sequence[int],
    *,
    nan: bool = False,
) -> KernelCase:
    """Return a case of x reduced along axes of an image."""

    def check() -> Check:
        numbers = normal(x.shape, stored=x.stored)
        if nan:
            numbers.flat[::7] = np.nan
        wide = numbers.astype(np.float64)
        length = np.prod([x.shape[axis + 1] for axis in axes])
        terms = reference.reduce(np.abs(wide), ReduceKind.SUM, axes)
        if kind is ReduceKind.MEAN:
            terms = terms / length
        if kind is ReduceKind.L2:
            terms = reference.reduce(wide, kind, axes)
        exact = kind in (ReduceKind.MAX, ReduceKind.MIN)
        bound = 0.0 * terms if exact else (length + 2) * EPS32 * terms
        return Check({"x": placed(numbers, x)}, y, reference.reduce(wide, kind, axes), bound)

    return KernelCase(name, (reduce_launch(kind, x, y, [axis + 1 for axis in axes]),), check)


def normalise_case(
    name: str,
    x: StridedTensor,
    y: StridedTensor,
    weights: tuple[int, ...],
    axes: Sequence[int],
    groups: int = 1,
    activation: Activation | None = None,
    *,
    mean: float = 0.0,
) -> KernelCase:
    """Return a case of normalised numbers. They are drawn around `mean`, and normalised along axes
    of an image with channels in groups."""
    epsilon = 1e-3
    weight = StridedTensor.contiguous(weights)

    def by_group(tensor: StridedTensor) -> StridedTensor:
        return tensor.broadcast(x.shape).split(1, groups)

    def check() -> Check:
        numbers = normal(x.shape, stored=x.stored) + x.stored.dtype.type(mean)
        scale, shift = normal(weights, 1), normal(weights, 2)
        wide = [each.astype(np.float64) for each in (numbers, scale, shift)]
        plain = reference.normalise(wide[0], wide[1], wide[2], axes, epsilon, groups)
        # Each difference is off by a rounding of the mean, relative to a deviation of about 1; the
        # sums of squares and the result by a rounding a step.
        length = np.prod([x.shape[axis + 1] for axis in axes]) // (groups if 0 in axes else 1)
        steps = length + 8
        error = EPS32 * (
            steps * (np.abs(plain - wide[2]) + np.abs(wide[2]))
            + 2 * steps * (abs(mean) + 1) * np.abs(wide[1])
        )
        inputs = {
            "x": placed(numbers, x),
            "scale": placed(scale, weight),
            "shift": placed(shift, weight),
        }
        expected = reference.activate(plain, activation)
        return Check(inputs, y, expected, np.broadcast_to(1.5 * error, y.shape))

    launch = normalise_launch(
        by_group(x),
        by_group(weight),
        by_group(weight),
        by_group(y),
        [axis + 2 for axis in axes],
        epsilon,
        activation,
    )
    return KernelCase(name, (launch,), check)


def resample_case(
    name: str,
    size: Sequence[int],
    tables: Sequence[Sequence[Sequence[tuple[int, float]]]],
    x: Pixels,
    y: Pixels,
) -> KernelCase:
    """Return a case that resamples 2 images of `size`. The tables state which positions are
    read."""
    taps = [np.array(table, np.float32) for table in tables]
    x_layout = x.strided(2, size)
    y_layout = y.strided(2, [len(table) for table in taps])

    def check() -> Check:
        numbers = normal(x_layout.shape, stored=x.stored)
        wide = [table.astype(np.float64) for table in taps]
        expected = reference.resample(numbers.astype(np.float64), wide)
        sizes = [np.stack([table[..., 0], np.abs(table[..., 1])], -1) for table in wide]
        terms = reference.resample(np.abs(numbers).astype(np.float64), sizes)
        names = ("depths", "heights", "widths")[-len(taps) :]
        inputs = {
            key: placed(table, StridedTensor.contiguous(table.shape))
            for key, table in zip(names, taps, strict=True)
        }
        steps = sum(table.shape[1] for table in taps) + 2
        one_tap = all(table.shape[1] == 1 for table in taps)
        bound = (0.0 if one_tap else steps * EPS32) * terms
        return Check({"x": placed(numbers, x_layout), **inputs}, y_layout, expected, bound)

    launch = resample_launch(2, size, [table.shape[:2] for table in taps], x, y)
    return KernelCase(name, (launch,), check)


def _contiguous(*shape: int) -> StridedTensor:
    return StridedTensor.contiguous(shape)


def _pixels(channels: int, pitch: int, *spatial: int, offset: int = 0) -> StridedTensor:
    return Pixels(channels, pitch, offset).strided(2, spatial)


def _at(*positions: int) -> list[list[tuple[int, float]]]:
    return [[(position, 1.0)] for position in positions]


def _between(*pairs: tuple[int, int, float]) -> list[list[tuple[int, float]]]:
    return [[(low, 1 - part), (high, part)] for low, high, part in pairs]


_HALVES = _between((0, 0, 0.75), (0, 1, 0.25), (0, 1, 0.75), (1, 2, 0.25), (2, 2, 0.75))
_GELU = Activation(ActivationKind.GELU)

REDUCTION_CASES = (
    *(
        reduce_case(
            "of the channels of pixels", kind, _pixels(12, 16, 3, 5), _pixels(1, 4, 3, 5), [0]
        )
        for kind in ReduceKind
    ),
    *(
        reduce_case(
            "of many channels", kind, _pixels(40, 40, 2, 3), _pixels(1, 4, 2, 3), [0], nan=True
        )
        for kind in ReduceKind
    ),
    reduce_case(
        "of all pixels, channels last",
        ReduceKind.MEAN,
        _contiguous(2, 5, 7, 6),
        _contiguous(2, 1, 1, 6),
        [0, 1],
    ),
    reduce_case(
        "of rows of pixels", ReduceKind.MEAN, _pixels(6, 8, 9, 5), _pixels(6, 8, 1, 5), [1]
    ),
    reduce_case(
        "of everything", ReduceKind.SUM, _pixels(24, 24, 5, 6), _pixels(1, 4, 1, 1), [0, 1, 2]
    ),
    reduce_case(
        "of splits", ReduceKind.SUM, _contiguous(2, 3, 8, 4, 5), _contiguous(2, 1, 8, 4, 5), [0]
    ),
    normalise_case("of channels", _pixels(40, 40, 3, 5), _pixels(40, 40, 3, 5), (40, 1, 1), [0]),
    normalise_case(
        "of channels, off vectors",
        _pixels(5, 7, 3, 5, offset=1),
        _pixels(5, 8, 3, 5),
        (5, 1, 1),
        [0],
        mean=50.0,
    ),
    normalise_case("of many channels", _pixels(600, 600, 2), _pixels(600, 600, 2), (600, 1), [0]),
    normalise_case("of the last axis", _contiguous(2, 3, 36), _contiguous(2, 3, 36), (36,), [1]),
    normalise_case(
        "of groups",
        _pixels(12, 12, 5, 7),
        _pixels(12, 24, 5, 7, offset=4),
        (12, 1, 1),
        [0, 1, 2],
        groups=3,
        activation=RELU,
    ),
    normalise_case(
        "of one group",
        _pixels(24, 24, 5, 7),
        _pixels(24, 24, 5, 7),
        (24, 1, 1),
        [0, 1, 2],
        activation=_GELU,
        mean=-3.0,
    ),
    normalise_case(
        "of instances", _pixels(6, 8, 4, 5), _pixels(6, 8, 4, 5), (6, 1, 1), [1, 2], mean=2.0
    ),
    resample_case(
        "to the nearest",
        (2, 3),
        (_at(0, 0, 1, 1), _at(0, 0, 1, 1, 2, 2)),
        Pixels(8, 8),
        Pixels(8, 24, 8),
    ),
    resample_case("linearly", (3, 3), (_HALVES, _HALVES), Pixels(8, 8), Pixels(8, 8)),
    resample_case(
        "linearly, off vectors", (3, 3), (_HALVES, _HALVES), Pixels(5, 7, 1), Pixels(5, 8)
    ),
    resample_case(
        "reflected",
        (4, 3),
        (_at(2, 1, 0, 1, 2, 3, 2), _at(1, 0, 1, 2, 1)),
        Pixels(3, 4),
        Pixels(3, 4),
    ),
    resample_case(
        "of a volume",
        (2, 3, 2),
        (_at(0, 0, 1), _HALVES, _at(0, 1, 1)),
        Pixels(4, 4),
        Pixels(4, 4),
    ),
)
