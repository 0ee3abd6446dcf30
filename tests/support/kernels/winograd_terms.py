"""Computes the sizes of the terms of Winograd's sums, to which rounding errors are relative."""

import numpy as np

from kernels.problems.conv import ConvProblem
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import WinogradMatrices
from kernels.winograd.program import program
from kernels.winograd.reference import products, tiles, untiled
from tests.support.kernels.arrays import Array


def winograd_terms(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> Array:
    """Return winograd_conv without signs, N×K×P×Q, to which a kernel's rounding errors are
    relative.

        |Aᵀ| [Σ_c (|G| |g| |Gᵀ|) ⊙ (|Bᵀ| |d| |B|)] |A|

    where |Aᵀ| and |Bᵀ| include what cancels in the generated transforms (Program.magnitudes).
    No intermediate sum is larger, so y errs by at most `winograd_roundings` · eps / 2 of this, to
    first order (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    """
    bt, at = (as_array(program(matrix).magnitudes()) for matrix in (matrices.bt, matrices.at))
    axes = len(problem.window.input)
    u = nested(np.abs(as_array(matrices.g)), np.abs(weight), axes)
    v = nested(np.abs(bt), tiles(np.abs(x), problem, matrices), axes)
    return untiled(nested(np.abs(at), products(u, v), axes), problem)
