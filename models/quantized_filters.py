"""Computes the integers that represent the filters and biases of a quantized network."""

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.integer import requantization
from kernels.problems.precision import BYTE, Storage
from models.graph import Grid, Weight


def is_quantized(stored: Storage) -> bool:
    """Return whether a value is stored as bytes. A byte, multiplied by a scale, represents a
    number."""
    return stored.dtype == BYTE.dtype


def operands_of(
    grid: Grid, bias: Weight | None, bias_grid: Grid | None, x: Storage, y: Storage
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the operands "offset" and "scale" that a kernel needs for a filter and its bias. The
    function `requantization` describes them.

    The bias is rounded to multiples of x's scale times the filter's scale. Raises ValueError if a
    sum may exceed 32 bits.
    """
    whole = None
    if bias is not None:
        step = np.float32(x.scale) * grid.scale
        whole = _in_steps(bias, bias_grid, step)
    return requantization(grid.numbers, grid.scale, whole, x, y)


def _in_steps(bias: Weight, grid: Grid | None, step: NDArray[np.float32]) -> NDArray[np.int64]:
    if grid is not None and np.allclose(grid.scale, step, rtol=1e-6, atol=0):
        return grid.numbers.astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):  # a filter may be all zeros
        steps = np.where(bias == 0, 0, bias.astype(np.float64) / step)
    if not (np.abs(steps) < 2**31).all():
        raise ValueError(
            "the bias, divided by the input's scale and the filter's scale, exceeds 32 bits"
        )
    return np.rint(steps).astype(np.int64)
