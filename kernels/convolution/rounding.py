"""Estimates the rounding errors of convolutions' sums, relative to the size of the sums.

The unit is u = eps / 2 of float32. A sum of L products with independent errors has an error of
about √L·u (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", theorem
3.1).
"""

from math import prod, sqrt

from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.winograd.matrices import Points, winograd_matrices
from kernels.winograd.stages import winograd_growth, winograd_roundings

ROUNDED = 2.0**13
"""The relative error of rounding a number to 11 bits, in units of u."""

FACTORS = {
    Precision.FP32: 0.0,
    Precision.TF32: 2 * ROUNDED,  # x and the weights
    Precision.TF32X3: 3 * 4 + 2 * 24,  # 2^-22 thrice; 24 truncated sums of products in a chunk
    Precision.FP16: ROUNDED,  # the weights; x was rounded where it was stored
    Precision.INT8: 0.0,
}
"""The relative error of a product that is due to the rounding of its factors, by precision, in
units of u."""


def direct_rounding(problem: ConvProblem) -> float:
    """Return the estimated relative error of an output of direct convolution at the problem's
    precision, in units of u = eps / 2 of float32."""
    return sqrt(prod(problem.filter_shape[1:])) + FACTORS[problem.precision]


def winograd_rounding(
    problem: ConvProblem, m: int, r: int, points: Points, factors: float
) -> float:
    """Return the estimated relative error of an output of Winograd's F(m, r), in units of u = eps /
    2 of float32. `factors` is the part of a product's relative error that comes from rounding the
    transformed data and weights."""
    matrices = winograd_matrices(m, r, points)
    growth = winograd_growth(matrices) ** len(problem.window.input)
    return float(growth * (sqrt(winograd_roundings(problem, matrices)) + factors))
