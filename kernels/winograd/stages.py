"""Computes Lavin & Gray's algorithm 1 for Winograd convolution in NumPy, as a reference.

    weight ── filter transform ─ U ─┐
    x ─ tiles ─ data transform ─ V ─┴─ products summed over C ─ M ─ inverse transform ─ y

Like kernels/reference.py, a stage computes in the type of its input: float64 to check a kernel, or
float32 to see the effect of rounding alone. 3-D follows Lan et al. 2017, section 3.2.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kernels.problems.conv import ConvProblem
from kernels.problems.refusals import dilated, grouped, strided, wrong_kernel
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import WinogradMatrices
from kernels.winograd.program import program

Array = NDArray[np.floating[Any]]


def winograd_conv(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> Array:
    """Return conv(x, weight), N×C×H×W → N×K×P×Q, computed by F(m, r) along every axis. weight is
    K×C×R×S.

    Raises ValueError if F(m, r) cannot compute the problem, or if an array has a wrong shape.
    """
    _require_problem(x, weight, problem, matrices)
    g, bt, at = (as_array(m).astype(x.dtype) for m in (matrices.g, matrices.bt, matrices.at))
    axes = len(problem.window.input)
    u = nested(g, weight, axes)
    v = nested(bt, tiles(x, problem, matrices), axes)
    return untiled(nested(at, products(u, v), axes), problem)


def winograd_roundings(problem: ConvProblem, matrices: WinogradMatrices) -> int:
    """Return an upper bound of the number of times that a term of y is rounded, for any order of
    sums.

    U is computed in float64 and rounded once. The products and their sum are rounded C times.
    """
    depth = program(matrices.bt).depth + program(matrices.at).depth
    return 1 + problem.c + len(problem.window.input) * depth


def tiles(x: Array, problem: ConvProblem, matrices: WinogradMatrices) -> Array:
    """Return x cut into tiles: N×C×H×W → N×C×⌈P/m⌉×⌈Q/m⌉×alpha×alpha, zero outside the image.

    Neighbouring tiles begin m apart, so they overlap by r - 1.
    """
    m, alpha, window = matrices.m, matrices.alpha, problem.window
    counts = [-(-size // m) for size in window.output]
    ends = [
        max(0, (count - 1) * m + alpha - begin - size)
        for count, begin, size in zip(counts, window.pads_begin, window.input, strict=True)
    ]
    padded = np.pad(x, ((0, 0), (0, 0), *zip(window.pads_begin, ends, strict=True)))
    spatial = tuple(range(2, x.ndim))
    at_every_position = sliding_window_view(padded, (alpha,) * len(spatial), spatial)
    return at_every_position[:, :, *(slice(None, None, m) for _ in spatial)]


def products(u: Array, v: Array) -> Array:
    """Multiply U (K×C×alpha×alpha) by V (N×C×⌈P/m⌉×⌈Q/m⌉×alpha×alpha). Return M
    (N×K×⌈P/m⌉×⌈Q/m⌉×alpha×alpha).

    For each xi and nu, M is a matrix product, summed over C (equations 12 and 13).
    """
    (k, c, *alphas), (n, _, *rest) = u.shape, v.shape
    counts = rest[: len(alphas)]
    left = u.reshape(k, c, -1).transpose(2, 0, 1)
    right = np.moveaxis(v, 1, 0).reshape(c, -1, len(left)).transpose(2, 0, 1)
    # Contiguous matrices, which matmul passes to BLAS.
    summed = np.ascontiguousarray(left) @ np.ascontiguousarray(right)
    summed = summed.transpose(1, 2, 0).reshape(k, n, *counts, *alphas)
    return np.moveaxis(summed, 1, 0)


def untiled(y: Array, problem: ConvProblem) -> Array:
    """Join the tiles, and cut the result to P×Q: N×K×⌈P/m⌉×⌈Q/m⌉×m×m → N×K×P×Q."""
    n, k, *rest = y.shape
    axes = len(rest) // 2
    interleaved = [axis for i in range(axes) for axis in (2 + i, 2 + axes + i)]
    sizes = [count * m for count, m in zip(rest[:axes], rest[axes:], strict=True)]
    whole = y.transpose(0, 1, *interleaved).reshape(n, k, *sizes)
    return whole[:, :, *map(slice, problem.window.output)]


def _require_problem(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> None:
    kernel = (matrices.r,) * len(problem.window.input)
    refusal = (
        wrong_kernel(problem, kernel) or strided(problem) or dilated(problem) or grouped(problem)
    )
    if refusal:
        raise ValueError(f"F({matrices.m},{matrices.r}) cannot compute {problem}: {refusal}")
    expected = (problem.n, problem.c, *problem.window.input), problem.filter_shape
    if (x.shape, weight.shape) != expected:
        raise ValueError(
            f"x and weight must have the shapes {expected}, got {x.shape} and {weight.shape}"
        )


def winograd_growth(matrices: WinogradMatrices) -> float:
    """Return κ, which estimates how much F(m, r) amplifies rounding errors along one axis. κ is the
    size of the products, each weighted by Aᵀ, divided by the size of y.

        κ² = mean_j Σ_i (Aᵀ[j][i] ‖G[i]‖ ‖Bᵀ[i]‖)² / r

    With independent filters and data, the mean square of product i is ‖G[i]‖² ‖Bᵀ[i]‖², and the
    mean square of y is r. In y, most of the products cancel each other. Their rounding errors do
    not cancel: each error is proportional to its product, and errors add up like independent
    numbers.
    """
    at, g, bt = (as_array(matrix) for matrix in (matrices.at, matrices.g, matrices.bt))
    products = (g**2).sum(axis=1) * (bt**2).sum(axis=1)
    return float(np.sqrt((at**2 @ products).mean() / matrices.r))
