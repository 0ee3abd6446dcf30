"""Computes the sizes of the terms of Winograd's sums. Rounding errors are relative to these
sizes."""

from fractions import Fraction

import numpy as np

from kernels.problems.conv import ConvProblem
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import Matrix, WinogradMatrices
from kernels.winograd.program import Kind, Program, Steps, Value, program
from kernels.winograd.stages import products, tiles, untiled
from tests.support.kernels.arrays import Array


def winograd_terms(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> Array:
    """Return the result of winograd_conv computed from absolute values, N×K×P×Q. A kernel's
    rounding errors are relative to this result.

        |Aᵀ| [Σ_c (|G| |g| |Gᵀ|) ⊙ (|Bᵀ| |d| |B|)] |A|

    Here |Aᵀ| and |Bᵀ| include the terms that cancel in the generated transforms (`magnitudes`). No
    intermediate sum is larger than this product. So, to first order, the error of y is at most
    `winograd_roundings` · eps / 2 times this product (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1).
    """
    bt, at = (as_array(magnitudes(program(matrix))) for matrix in (matrices.bt, matrices.at))
    axes = len(problem.window.input)
    u = nested(np.abs(as_array(matrices.g)), np.abs(weight), axes)
    v = nested(np.abs(bt), tiles(np.abs(x), problem, matrices), axes)
    return untiled(nested(np.abs(at), products(u, v), axes), problem)


def matrix_of(computed: Program) -> Matrix:
    """Return the matrix that a program's steps compute."""
    return _expanded(computed, absolute=False)


def magnitudes(computed: Program) -> Matrix:
    """Return the matrix of the terms' sizes. Each entry bounds how much an input contributes to the
    sums of an output, and so bounds the rounding error of these sums.

    The entry is the absolute value of the entry in the program's matrix. It is larger if shared
    values partly cancel.
    """
    return _expanded(computed, absolute=True)


def _expanded(computed: Program, *, absolute: bool) -> Matrix:
    inputs = [Value(Kind.INPUT, j) for j in range(computed.columns)]
    sums: Steps = {value: {value: Fraction(1)} for value in inputs}
    for value, terms in computed.steps.items():
        sums[value] = dict.fromkeys(inputs, Fraction(0))
        for term, c in terms.items():
            for source, inner in sums[term].items():
                sums[value][source] += (abs(c) if absolute else c) * inner
    outputs = (sums[Value(Kind.OUTPUT, i)] for i in range(computed.rows))
    return tuple(tuple(row[source] for source in inputs) for row in outputs)
