"""Defines operations on quantized bytes in plain NumPy, as an exact reference."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Storage
from tests.support.kernels import reference
from tests.support.kernels.arrays import Array


def quantized_conv(
    x: NDArray[np.uint8],
    numbers: NDArray[np.int32],
    scale: NDArray[np.float32],
    problem: ConvProblem,
    stored: tuple[Storage, Storage],
    bias: NDArray[np.integer[Any]] | None = None,
    residual: tuple[NDArray[np.uint8], Storage] | None = None,
    ahead: Storage | None = None,
    activation: Activation | None = None,
) -> NDArray[np.uint8]:
    """Return the bytes of activation(conv(x, numbers · scale) + residual), exactly.

    `stored` states how x and y are stored. The filter's `scale` has one entry or K entries. The
    unit of the bias is x's scale times the filter's scale. The sum of products and bias is exact.
    It is then converted to float32, in units of y's scale, and the residual is added. If `ahead` is
    given, the sum is first rounded to a multiple of ahead's scale. The activation clamps.
    """
    of_x, of_y = stored
    centred = x.astype(np.float64) - of_x.zero_point
    sums = reference.conv(centred, numbers.astype(np.float64), problem)
    if bias is not None:
        sums += _per_channel(bias.astype(np.float64), sums.ndim)
    first, unit = np.float32((ahead or of_y).scale), np.float32(of_y.scale)
    step = np.broadcast_to(np.float32(of_x.scale) * scale / first, (problem.k,))
    y = sums.astype(np.float32) * _per_channel(step, sums.ndim)
    if residual is not None:
        added, of_added = residual
        if ahead is not None:
            low, high = -ahead.zero_point, 255 - ahead.zero_point
            y = np.clip(np.rint(y), low, high) * (first / unit)
        steps = added.astype(np.float32) - np.float32(of_added.zero_point)
        y = y + steps * (np.float32(of_added.scale) / unit)
    return _bytes_of(y, of_y, activation)


def quantized_add(
    a: tuple[NDArray[np.uint8], Storage],
    b: tuple[NDArray[np.uint8], Storage],
    y: Storage,
    activation: Activation | None = None,
) -> NDArray[np.uint8]:
    """Return the bytes of activation(a + b), exactly. The activation clamps."""
    unit = np.float32(y.scale)
    left, right = (
        (x.astype(np.float32) - np.float32(of.zero_point)) * (np.float32(of.scale) / unit)
        for x, of in (a, b)
    )
    return _bytes_of(left + right, y, activation)


def quantized_average(x: NDArray[np.uint8], of_x: Storage, of_y: Storage) -> NDArray[np.uint8]:
    """Return the bytes of the average over H×W, or D×H×W, exactly."""
    spatial = tuple(range(2, x.ndim))
    sums = (x.astype(np.int64) - of_x.zero_point).sum(axis=spatial, keepdims=True)
    count = np.float32(x[0, 0].size)
    step = np.float32(of_x.scale) / (np.float32(of_y.scale) * count)
    return _bytes_of(sums.astype(np.float32) * step, of_y)


def _bytes_of(steps: Array, y: Storage, activation: Activation | None = None) -> NDArray[np.uint8]:
    """Return the bytes of activation(steps), where steps are multiples of y's scale."""
    if activation is not None:
        bounds = np.array([-np.inf, np.inf], np.float32)
        low, high = reference.activate(bounds, activation) / np.float32(y.scale)
        steps = np.minimum(np.maximum(steps, low), high)
    return np.asarray(np.clip(np.rint(steps) + y.zero_point, 0, 255), np.uint8)


def _per_channel(vector: Array, ndim: int) -> Array:
    """Return C numbers reshaped to broadcast over N×C×...."""
    return vector.reshape(-1, *(1,) * (ndim - 2))
