"""Counts arithmetic as in Lavin & Gray 2015, section 5, and computes their tables 1 and 2 and
equations 16 to 23.

Equation 23 is L = alpha' (1 + beta'/K + gamma'/P + delta'/C) N H W C K. alpha' is the number of
multiplications per output and channel. beta', gamma' and delta' are the arithmetic of the data,
filter and inverse transforms, divided by the number of multiplications between them. Winograd has
alpha² multiplications per tile, channel and filter. The FFT has alpha (alpha/2 + 1) complex
multiplications, each of 4 real multiplications, or 3 with the fast product. The paper does not
state this divisor, but its numbers follow from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2, prod

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.result import Cells
from kernels.problems.conv import ConvProblem
from kernels.winograd.matrices import Matrix, WinogradMatrices
from kernels.winograd.program import Kind, Terms, Value, instructions, program

HALF = Fraction(1, 2)

R = 3
"""The number of taps of the filter along an axis, in both tables."""

POINTS: Mapping[int, tuple[Fraction | int, ...]] = {
    2: (0, 1, -1),
    3: (0, 1, -1, 2),
    4: (0, 1, -1, 2, -2),
    6: (0, 1, -1, 2, -2, HALF, -HALF),
    8: (0, 1, -1, 2, -2, HALF, -HALF, 4, -4),
}
"""The points of F(m, 3). For tiles that the paper has, they are the paper's points."""


@dataclass(frozen=True, slots=True)
class Complexity:
    """Holds the factors alpha', beta', gamma' and delta' of equation 23: the arithmetic of the
    products, and of the data, filter and inverse transforms."""

    products: float  # alpha'
    data: float  # beta'
    filter: float  # gamma'
    inverse: float  # delta'

    def total(self, k: float, p: float, c: float) -> float:
        """Return L / (N H W C K) from equation 23 for K filters, P tiles and C channels."""
        return self.products * (1 + self.data / k + self.filter / p + self.inverse / c)


TABLE_1: Mapping[int, tuple[float, float, float, float]] = {
    4: (4.00, 2.00, 1.75, 1.50),
    5: (2.78, 3.60, 2.24, 2.24),
    6: (2.25, 4.33, 2.00, 2.78),
    8: (1.78, 6.50, 2.23, 4.38),
}
"""The Winograd half of table 1: alpha', beta', gamma' and delta' by alpha."""

TABLE_1_FFT: Mapping[int, tuple[float, float]] = {
    8: (4.44, 2.42),
    16: (2.94, 4.23),
    32: (2.42, 6.24),
    64: (2.20, 8.30),
    128: (2.10, 10.37),
    256: (2.05, 12.42),
}
"""The FFT half of table 1: alpha', and the arithmetic of each transform."""

TABLE_2: Mapping[int, tuple[float, float, float, float]] = {
    8: (3.33, 3.77, 4.30, 4.30),
    16: (2.20, 6.23, 6.82, 6.82),
    32: (1.81, 8.94, 9.57, 9.57),
    64: (1.65, 11.72, 12.36, 12.36),
    128: (1.57, 14.48, 15.14, 15.14),
    256: (1.54, 17.22, 17.88, 17.88),
}
"""Table 2: the FFT with three real multiplications per complex product."""


def _steps(*rows: Mapping[str, Fraction | int]) -> dict[Value, Terms]:
    """Return the steps of a filter transform, one step per row.

    The first name in a row is the result of the step. The other names are the terms that the step
    adds, with their factors. g0 to g2 are the numbers of the filter, u0 to u7 are the transformed
    numbers, and t0 to t2 are sums that several steps use.
    """
    kinds = {"g": Kind.INPUT, "u": Kind.OUTPUT, "t": Kind.SHARED}

    def value(name: str) -> Value:
        return Value(kinds[name[0]], int(name[1:]))

    return {
        value(next(iter(row))): {value(name): Fraction(c) for name, c in list(row.items())[1:]}
        for row in rows
    }


def _pair(plus: int, even: str, odd: Fraction) -> tuple[Mapping[str, Fraction | int], ...]:
    """Return two steps, which compute the transformed filter at the interpolation points a and -a.
    The first step adds odd·g1 to `even`, and the second step subtracts odd·g1 from it."""
    return tuple({f"u{plus + i}": 0, even: 1, "g1": sign * odd} for i, sign in enumerate((1, -1)))


def _even(name: str, first: Fraction, last: Fraction) -> Mapping[str, Fraction | int]:
    return {name: 0, "g0": first, "g2": last}


_SIXTH = Fraction(1, 6)
FILTERS: Mapping[int, dict[Value, Terms]] = {
    2: _steps(
        {"u0": 0, "g0": 1},
        _even("t0", HALF, HALF),
        *_pair(1, "t0", HALF),
        {"u3": 0, "g2": 1},
    ),
    3: _steps(
        {"u0": 0, "g0": HALF},
        {"u1": 0, "u0": -1, "g1": -HALF, "g2": -HALF},
        {"t0": 0, "g1": Fraction(1, 3)},
        {"u2": 0, "u1": Fraction(1, 3), "t0": 1},
        {"u3": 0, "t0": 1, "g0": _SIXTH, "g2": Fraction(2, 3)},
        {"u4": 0, "g2": 1},
    ),
    4: _steps(
        {"u0": 0, "g0": Fraction(1, 4)},
        {"t0": 0, "g2": _SIXTH},
        {"t1": 0, "t0": -1, "g0": -_SIXTH},
        *_pair(1, "t1", -_SIXTH),
        {"t2": 0, "t0": 1, "g0": _SIXTH / 4},
        *_pair(3, "t2", _SIXTH / 2),
        {"u5": 0, "g2": 1},
    ),
    6: _steps(
        {"u0": 0, "g0": 1},
        _even("t0", Fraction(-2, 9), Fraction(-2, 9)),
        *_pair(1, "t0", Fraction(-2, 9)),
        _even("t1", Fraction(1, 90), Fraction(4, 90)),
        *_pair(3, "t1", Fraction(2, 90)),
        _even("t2", Fraction(32, 45), Fraction(8, 45)),
        *_pair(5, "t2", Fraction(16, 45)),
        {"u7": 0, "g2": 1},
    ),
}  # fmt: skip
"""The steps that transform a filter along one axis, by m. The steps are only counted: Convoy
transforms filters once, at load time, in float64."""


def matrix_of(steps: Mapping[Value, Terms]) -> Matrix:
    """Return the matrix of the filter transform that these steps compute."""
    known = {
        Value(Kind.INPUT, tap): tuple(Fraction(tap == column) for column in range(R))
        for tap in range(R)
    }
    for value, terms in steps.items():
        rows = [[c * entry for entry in known[term]] for term, c in terms.items()]
        known[value] = tuple(sum(column, Fraction()) for column in zip(*rows, strict=True))
    return tuple(row for value, row in sorted(known.items()) if value.kind is Kind.OUTPUT)


@dataclass(frozen=True, slots=True)
class Transforms:
    """Holds the number of floating-point instructions of each one-dimensional transform of F(m,
    3)."""

    m: int
    data: int
    filter: int
    inverse: int

    @property
    def in_2d(self) -> tuple[int, int, int]:
        """Return how many instructions each of the three transforms of a two-dimensional tile
        takes: the data transform, the filter transform and the inverse transform."""
        m, alpha = self.m, self.m + R - 1
        return self.data * 2 * alpha, self.filter * (R + alpha), self.inverse * (alpha + m)


def matrices(m: int) -> WinogradMatrices:
    """Return the matrices of F(m, 3) at POINTS."""
    return WinogradMatrices(m, R, POINTS[m], -1 if m == 2 else 1)


def transforms(m: int) -> Transforms:
    """Count the instructions of Convoy's generated data and inverse transforms, and of the filter
    transform in FILTERS."""
    of = matrices(m)
    taken = sum(map(instructions, FILTERS[m].values()))
    return Transforms(m, program(of.bt).instructions, taken, program(of.at).instructions)


def paired(m: int) -> Transforms:
    """Count the instructions of transforms in which only the rows for the points a and -a share
    terms.

    POINTS[m] must consist of 0 and of pairs a and -a. For tiles of 4, 6 and 8, the results equal
    the paper's counts.
    """
    of = matrices(m)

    def rows(matrix: Matrix) -> int:
        """Return the number of instructions of a transform with this matrix. The first and last
        row, for the points 0 and infinity, are counted separately. The two rows for a and -a are
        the sum and the difference of two shared parts, which are counted once."""
        taken = _instructions(matrix[0]) + _instructions(matrix[-1])
        for row in matrix[1:-1:2]:
            halves = [[c for j, c in enumerate(row) if j % 2 == odd] for odd in (0, 1)]
            taken += sum(map(_instructions, halves)) + 2
        return taken

    pairs = len(POINTS[m]) // 2
    inverse = 2 * pairs + sum(_instructions((row[0], *row[1:-1:2], row[-1])) for row in of.at)
    return Transforms(m, rows(of.bt), rows(of.g), inverse)


def _instructions(row: Sequence[Fraction]) -> int:
    terms = [c for c in row if c]
    return len(terms) - any(abs(c) == 1 for c in terms) if terms else 0


def winograd(counts: Transforms) -> Complexity:
    """Return the normalised arithmetic of F(m×m, 3×3), as in equation 22."""
    alpha = counts.m + R - 1
    data, of_filter, inverse = (taken / alpha**2 for taken in counts.in_2d)
    return Complexity((alpha / counts.m) ** 2, data, of_filter, inverse)


def fft(alpha: int, *, fast: bool) -> Complexity:
    """Return the normalised arithmetic of convolution by split-radix FFTs of tiles of alpha×alpha
    numbers.

    The FFT of n complex numbers takes 4 n lg n - 6 n + 8 instructions. The FFT of n real numbers
    takes 2 n lg n - 4 n + 6. First, alpha real rows are transformed. Then two real columns and
    alpha/2 - 1 complex columns are transformed.

    With `fast`, a complex product takes 3 multiplications instead of 4. For this, the data
    transform takes 1 more instruction per number of the tile. The filter transform and the inverse
    transform each take 2 more.
    """
    lg = log2(alpha)
    real, whole = (2 * alpha * lg - 4 * alpha + 6), (4 * alpha * lg - 6 * alpha + 8)
    transform = (alpha + 2) * real + (alpha // 2 - 1) * whole
    products = (3 if fast else 4) * (alpha // 2 + 1) * alpha
    data, others = (alpha**2, 2 * alpha**2) if fast else (0, 0)
    beta, gamma = (transform + data) / products, (transform + others) / products
    return Complexity(products / (alpha - R + 1) ** 2, beta, gamma, gamma)


Complexes = NDArray[np.complexfloating]


def fast_product(x: complex, y: complex) -> complex:
    """Return x·y with three real multiplications, as in equation 17.

    Equation 16 prints the two sums in the wrong order: the imaginary part comes first.
    """
    real, imaginary = reversed(printed_product(x, y))
    return complex(real, imaginary)


def printed_product(x: complex, y: complex) -> tuple[float, float]:
    """Return the two sums of equation 16 for x·y, in the order in which the paper prints them."""
    ua, ub, uc = x.real, x.real + x.imag, x.imag - x.real
    va, vb, vc = y.real, y.imag, y.real + y.imag
    return uc * va + ua * vc, ua * vc - ub * vb


def shares(problem: ConvProblem, m: int, counts: Transforms) -> float:
    """Return the arithmetic of a convolution by F(m×m, 3×3) (equation 23), divided by the
    arithmetic of the direct sum. Tiles at the edge of the image count as whole tiles."""
    tiles = problem.n * prod(ceil(size / m) for size in problem.window.output)
    return winograd(counts).total(problem.k, tiles, problem.c) / R**2


def table_1() -> Cells:
    """Return the Winograd half of table 1. A cell has the paper's number, and Convoy's number if it
    differs."""
    rows: list[Sequence[str]] = [("tile", "α′", "β′", "γ′", "δ′")]
    for alpha, theirs in TABLE_1.items():
        found = winograd(transforms(alpha - R + 1))
        ours = found.products, found.data, found.filter, found.inverse
        pairs = zip(theirs, ours, strict=True)
        rows.append((f"{alpha}×{alpha}", *(_beside(f"{a:.2f}", f"{b:.2f}") for a, b in pairs)))
    return rows


def table_ffts() -> Cells:
    """Return the FFT half of table 1, and table 2."""
    rows: list[Sequence[str]] = [("tile", "α′", "β′, γ′, δ′", "fast α′", "fast β′", "fast γ′, δ′")]
    for alpha, (products, transform) in TABLE_1_FFT.items():
        plain, fast = (fft(alpha, fast=each) for each in (False, True))
        theirs = products, transform, *TABLE_2[alpha][:3]
        ours = plain.products, plain.data, fast.products, fast.data, fast.filter
        pairs = zip(theirs, ours, strict=True)
        rows.append((f"{alpha}×{alpha}", *(_beside(f"{a:.2f}", f"{b:.2f}") for a, b in pairs)))
    return rows


def _beside(theirs: str, ours: str) -> str:
    return theirs if _close(theirs, ours) else f"{theirs} → {ours}"


def _close(theirs: str, ours: str) -> bool:
    return abs(float(theirs) - float(ours)) < 0.011


def table_transforms() -> Cells:
    """Return the instructions of the transforms by tile size. A cell has the paper's number, and
    Convoy's number if it differs."""
    rows: list[Sequence[str]] = [("tile", "data", "filter", "inverse")]
    for alpha, (_, *normalised) in TABLE_1.items():
        theirs = [round(number * alpha**2) for number in normalised]
        ours = transforms(alpha - R + 1).in_2d
        pairs = zip(theirs, ours, strict=True)
        rows.append((f"{alpha}×{alpha}", *(f"{a}" if a == b else f"{a} → {b}" for a, b in pairs)))
    return rows


def table_equation_23(problem: ConvProblem) -> Cells:
    """Return the arithmetic of the direct sum divided by the arithmetic of F(m×m, 3×3), transforms
    included, for each tile size.

    C = K is 1, 4, 16, 64 or the layer's C. P is the layer's number of tiles.
    """
    widths = (1, 4, 16, 64, problem.c)
    rows: list[Sequence[str]] = [("tile", *(f"C = K = {width}" for width in widths))]
    for m in (2, 4, 6, 8):
        gains = (
            1 / shares(ConvProblem(problem.n, width, width, problem.window), m, paired(m))
            for width in widths
        )
        rows.append((f"{m + R - 1}×{m + R - 1}", *(f"{gain:.2f}" for gain in gains)))
    return rows
