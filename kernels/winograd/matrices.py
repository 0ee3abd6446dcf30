"""Constructs the three matrices of Winograd's minimal filtering F(m, r) as exact fractions.

F(m, r) computes m outputs y of a filter g with r taps from alpha = m + r - 1 inputs d, with alpha
multiplications (Lavin & Gray 2015, section 4.1, equation 6):

    y = Aᵀ[(G g) ⊙ (Bᵀ d)],  y[j] = Σ_k d[j + k] g[k]

The construction is the transposed Toom-Cook algorithm. A product of polynomials of degrees m - 1
and r - 1 is determined by its values at alpha points. The last point is infinity, where a
polynomial's value is its highest coefficient. A and G evaluate the polynomials at the points, and B
interpolates their product. If this construction is transposed with respect to A's polynomial, the
product becomes filtering:

    Aᵀ[j][i] = aᵢʲ                                the last column is (0, ..., 0, 1)
    G[i][k]  = aᵢᵏ / fᵢ, fᵢ = Π_{j≠i} (aᵢ - aⱼ)   the last row is (0, ..., 0, 1)
    Bᵀ[i]    = coefficients of M(x) / (x - aᵢ)    the last row has M(x) = Π_i (x - aᵢ)

A row of G may be multiplied by a number if the same row of Bᵀ, or the same column of Aᵀ, is divided
by that number. As in the papers, all factors 1 / fᵢ are in G, which is applied only once per
filter. So Bᵀ has fractions only if the points are fractions.
"""

from dataclasses import dataclass
from enum import Enum, unique
from fractions import Fraction
from math import prod

Matrix = tuple[tuple[Fraction, ...], ...]
"""A matrix as rows of equal length."""


@unique
class Points(Enum):
    """Lists sets of interpolation points, without infinity. F(m, r) uses the first m + r - 2 points
    of a set.

    F(2, 3) uses the first three points. For F(4, 3), Lavin and Gray use integers. With ½ instead of
    2, the entries of the matrices differ less in size. This reduces the error by a third, but each
    one-dimensional transform needs two more instructions.
    """

    INTEGER = (0, 1, -1, 2, -2)
    MIXED = (0, 1, -1, Fraction(1, 2), -2)


@dataclass(frozen=True, slots=True)
class WinogradMatrices:
    """Holds Aᵀ, G and Bᵀ of F(m, r), made for m + r - 2 different finite points and infinity.

    Signs are as in the papers: Bᵀ's first row is negated if this makes the denominator in G's first
    row positive. If `infinity` is -1 instead of 1, the last row of Bᵀ and the last column of Aᵀ are
    negated. Raises ValueError if m, r, the points or `infinity` are invalid.
    """

    m: int
    r: int
    points: tuple[Fraction | int, ...]
    infinity: int = 1

    def __post_init__(self) -> None:
        if self.m < 1 or self.r < 1:
            raise ValueError(f"F(m, r) needs m and r of at least 1, got F({self.m},{self.r})")
        if len(self.points) != self.alpha - 1:
            raise ValueError(
                f"F({self.m},{self.r}) needs {self.alpha - 1} finite points, "
                f"got {len(self.points)}: {_listed(self.points)}"
            )
        if len(set(self.points)) != len(self.points):
            raise ValueError(f"points must differ from each other: {_listed(self.points)}")
        if self.infinity not in (1, -1):
            raise ValueError(f"infinity={self.infinity} must be 1 or -1")

    @property
    def alpha(self) -> int:
        """Return m + r - 1, the length of an input tile. It is also the number of
        multiplications."""
        return self.m + self.r - 1

    @property
    def at(self) -> Matrix:
        """Return the inverse transform Aᵀ, m×alpha."""
        return tuple(
            (
                *(Fraction(point) ** j for point in self.points),
                Fraction(self.infinity if j == self.m - 1 else 0),
            )
            for j in range(self.m)
        )

    @property
    def g(self) -> Matrix:
        """Return the filter transform G, alpha×r."""
        return (
            *(
                tuple(Fraction(point) ** k / (self._sign(i) * self._f(i)) for k in range(self.r))
                for i, point in enumerate(self.points)
            ),
            tuple(Fraction(k == self.r - 1) for k in range(self.r)),
        )

    @property
    def bt(self) -> Matrix:
        """Return the data transform Bᵀ, alpha×alpha."""
        return (
            *(
                (*(self._sign(i) * c for c in _monic(self._others(i))), Fraction(0))
                for i in range(len(self.points))
            ),
            tuple(self.infinity * c for c in _monic(self.points)),
        )

    def _others(self, i: int) -> tuple[Fraction | int, ...]:
        return self.points[:i] + self.points[i + 1 :]

    def _f(self, i: int) -> Fraction:
        return prod((Fraction(self.points[i] - a) for a in self._others(i)), start=Fraction(1))

    def _sign(self, i: int) -> int:
        return -1 if i == 0 and self._f(i) < 0 else 1


def winograd_matrices(m: int, r: int, points: Points) -> WinogradMatrices:
    """Return the matrices of F(m, r) that the kernels use. Raises ValueError for too few points.

    For F(2, 3), `infinity` is -1, as in Lavin & Gray's equation 7. For F(3, 2) and F(4, 3) it is 1,
    as in Lavin & Gray.
    """
    infinity = -1 if (m, r) == (2, 3) else 1
    return WinogradMatrices(m, r, points.value[: m + r - 2], infinity)


def _monic(roots: tuple[Fraction | int, ...]) -> tuple[Fraction, ...]:
    """Return the coefficients of Π (x - root), the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        by_x = [Fraction(0), *coefficients]
        by_root = [root * c for c in coefficients] + [Fraction(0)]
        coefficients = [a - b for a, b in zip(by_x, by_root, strict=True)]
    return tuple(coefficients)


def _listed(points: tuple[Fraction | int, ...]) -> str:
    return ", ".join(map(str, points))
