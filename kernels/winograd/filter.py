"""Computes the transformed filter of every Winograd kernel on the host, one axis after another."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.layout.operands import Filter, padded
from kernels.problems.precision import Storage
from kernels.winograd.matrices import Matrix, Points, winograd_matrices

Array = NDArray[np.floating[Any]]


def filter_transform(weight: Filter, m: int, points: Points) -> NDArray[np.float32]:
    """Return U, the filter transformed by F(m, r) along every axis: K×C×R×S → alpha² × C × K,
    K×C×T×R×S → alpha³ × C × K.

    Along the first axis of U, the index nu (along S) varies fastest, and xi (along R) more slowly.
    In 3-D, the index along T varies slowest. C and K are padded with zeros to whole vectors. U is
    computed in float64 and rounded once, when the model is loaded: variant FX of Lavin & Gray,
    section 6. Raises ValueError if R and S differ, or if there are too few points.
    """
    k, c, r, *others = weight.shape
    if any(size != r for size in others):
        raise ValueError(
            f"F(m, r) needs the same r along every axis, got a filter of shape {weight.shape}"
        )
    matrices = winograd_matrices(m, r, points)
    axes = weight.ndim - 2
    u = nested(as_array(matrices.g), weight, axes)
    result = np.zeros((matrices.alpha**axes, padded(c), padded(k)), np.float32)
    result[:, :c, :k] = u.reshape(k, c, -1).transpose(2, 1, 0)
    return result


def filter_rows(weight: Filter, m: int, points: Points, stored: Storage) -> Filter:
    """Return U of `filter_transform` as a matrix (alpha² K) × C, with one row for each filter at
    each position of the tile.

    K is padded with zeros to whole vectors, and C to a multiple of 16 bytes.
    """
    u = filter_transform(weight, m, points).swapaxes(1, 2)
    u = np.pad(u, ((0, 0), (0, 0), (0, -u.shape[2] % (16 // stored.itemsize))))
    return u.reshape(-1, u.shape[2]).astype(stored)


def nested(matrix: Array, x: Array, axes: int) -> Array:
    """Multiply x by `matrix` along each of its last `axes` axes, and return the result.

    In 2-D, the result is G g Gᵀ if `matrix` is G and x is g (Lavin & Gray, equation 8).
    """
    for axis in range(x.ndim - axes, x.ndim):
        x = np.moveaxis(np.tensordot(x, matrix, axes=(axis, 1)), -1, axis)
    return x


def as_array(matrix: Matrix) -> NDArray[np.float64]:
    """Return a matrix of fractions, rounded to float64."""
    return np.array([[float(c) for c in row] for row in matrix])
