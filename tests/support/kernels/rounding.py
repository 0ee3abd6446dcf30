"""How rounding errors of float32 grow."""

import numpy as np

from kernels.winograd.filter import as_array
from kernels.winograd.matrices import WinogradMatrices


def winograd_growth(matrices: WinogradMatrices) -> float:
    """How much larger the sums of F(m, r) are, as Aᵀ weighs them, than y: κ along one axis.

        κ² = mean_j Σ_i (Aᵀ[j][i] ‖G[i]‖ ‖Bᵀ[i]‖)² / r

    Filters and data that are independent make products i of mean square ‖G[i]‖² ‖Bᵀ[i]‖², and an y
    of r. In y most of the products cancels. Their rounding errors, in proportion to each of them,
    do not: they add up like independent numbers.
    """
    at, g, bt = (as_array(each) for each in (matrices.at, matrices.g, matrices.bt))
    products = (g**2).sum(axis=1) * (bt**2).sum(axis=1)
    return float(np.sqrt((at**2 @ products).mean() / matrices.r))
