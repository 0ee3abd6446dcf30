"""Measures the rounding errors of Winograd's F(9×9, 5×5). Soutar 2020 says that scaled matrices
and other interpolation points reduce these errors.

All stages are in float32, and the channels are added one after another. In a second variant, the
transformed filters and inputs are rounded to float16, as tensor cores require.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from benchmarks.kernels.costs import direct
from kernels import reference
from kernels.problems.conv import same_padded
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import WinogradMatrices
from kernels.winograd.stages import products, tiles, untiled

M, R = 9, 5
PROBE = same_padded((27, 27), R, 32, 4)
"""The layer whose errors are measured. It has nine tiles."""


def _signed(*points: int | str) -> tuple[Fraction, ...]:
    return tuple(sign * Fraction(point) for point in points for sign in (1, -1))


POINTS: Mapping[str, tuple[Fraction | int, ...]] = {
    "whole numbers": (0, *_signed(1, 2, 3, 4, 5), 6),
    "with reciprocals": (0, *_signed(1, "1/2", 2, "3/4", "4/3"), Fraction(-1, 4)),
}
"""Two sets of points: whole numbers, which continue Winograd's tables, and pairs of reciprocals
with both signs, which differ less in size."""


def errors(points: Sequence[Fraction | int], *, scaled: bool, halves: bool, seed: int = 0) -> float:
    """Return the largest error of F(9×9, 5×5) on PROBE, divided by the direct sum's error in
    float32.

    If `scaled`, the rows of G and of Bᵀ are multiplied by powers of two, and the columns of Aᵀ are
    divided by these powers. If `halves`, U and V are rounded to float16.
    """
    rng = np.random.default_rng(seed)
    x, weight = (
        rng.uniform(-1, 1, shape).astype(np.float32)
        for shape in ((1, PROBE.c, *PROBE.window.input), PROBE.filter_shape)
    )
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), PROBE)
    matrices = WinogradMatrices(M, R, tuple(points))
    g, bt, at = (as_array(each) for each in (matrices.g, matrices.bt, matrices.at))
    if scaled:
        of_g, of_bt = (
            2.0 ** np.rint(-np.log2(np.linalg.norm(matrix, axis=1))) for matrix in (g, bt)
        )
        g, bt, at = g * of_g[:, None], bt * of_bt[:, None], at / (of_g * of_bt)
    u = nested(g, weight.astype(np.float64), 2).astype(np.float32)
    v = nested(bt.astype(np.float32), tiles(x, PROBE, matrices), 2)
    if halves:
        with np.errstate(over="ignore"):
            u, v = (each.astype(np.float16).astype(np.float32) for each in (u, v))
    with np.errstate(invalid="ignore", over="ignore"):
        y = untiled(nested(at.astype(np.float32), products(u, v), 2), PROBE)
        apart = np.abs(y - truth)
    least = float(np.abs(direct(x, weight, PROBE) - truth).max())
    return float(apart.max()) / least if np.isfinite(y).all() else float("inf")
