"""The matrices of F(m, r): the ones in the papers, and the identity that makes them correct."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.winograd.matrices import Matrix, Points, WinogradMatrices, winograd_matrices

HALF = Fraction(1, 2)


def matrix(text: str) -> Matrix:
    """Return rows from lines; a number before a bar is a common factor: "1/6 | 1 1 1" is (1/6, 1/6,
    1/6)."""
    rows = []
    for line in text.strip().splitlines():
        factor, _, row = line.rpartition("|")
        rows.append(tuple(Fraction(factor.strip() or 1) * Fraction(entry) for entry in row.split()))
    return tuple(rows)


# Lavin & Gray 2015, equations 7, 14 and 15, and their supplement for F(6, 3). F(2, 5) has as many
# points as F(4, 3), so the same Bᵀ.
BT_OF_SIX = """
    4  0 -5  0 1 0
    0 -4 -4  1 1 0
    0  4 -4 -1 1 0
    0 -2 -1  2 1 0
    0  2 -1 -2 1 0
    0  4  0 -5 0 1
"""
PUBLISHED = {
    "F(2,3)": (
        winograd_matrices(2, 3, Points.INTEGER),
        """
            1 1  1  0
            0 1 -1 -1
        """,
        """
                  1  0  0
            1/2 | 1  1  1
            1/2 | 1 -1  1
                  0  0  1
        """,
        """
            1  0 -1  0
            0  1  1  0
            0 -1  1  0
            0  1  0 -1
        """,
    ),
    "F(3,2)": (
        winograd_matrices(3, 2, Points.INTEGER),
        """
            1 1  1 0
            0 1 -1 0
            0 1  1 1
        """,
        """
                  1  0
            1/2 | 1  1
            1/2 | 1 -1
                  0  1
        """,
        """
            1  0 -1 0
            0  1  1 0
            0 -1  1 0
            0 -1  0 1
        """,
    ),
    "F(4,3)": (
        winograd_matrices(4, 3, Points.INTEGER),
        """
            1 1  1 1  1 0
            0 1 -1 2 -2 0
            0 1  1 4  4 0
            0 1 -1 8 -8 1
        """,
        """
             1/4 | 1  0 0
            -1/6 | 1  1 1
            -1/6 | 1 -1 1
            1/24 | 1  2 4
            1/24 | 1 -2 4
                   0  0 1
        """,
        BT_OF_SIX,
    ),
    "F(2,5)": (
        winograd_matrices(2, 5, Points.INTEGER),
        """
            1 1  1 1  1 0
            0 1 -1 2 -2 1
        """,
        """
             1/4 | 1  0 0  0  0
            -1/6 | 1  1 1  1  1
            -1/6 | 1 -1 1 -1  1
            1/24 | 1  2 4  8 16
            1/24 | 1 -2 4 -8 16
                   0  0 0  0  1
        """,
        BT_OF_SIX,
    ),
    "F(6,3)": (
        WinogradMatrices(6, 3, (0, 1, -1, 2, -2, HALF, -HALF)),
        """
            1 1  1  1   1 1    1    0
            0 1 -1  2  -2 1/2 -1/2  0
            0 1  1  4   4 1/4  1/4  0
            0 1 -1  8  -8 1/8 -1/8  0
            0 1  1 16  16 1/16 1/16 0
            0 1 -1 32 -32 1/32 -1/32 1
        """,
        """
                   1  0 0
            -2/9 | 1  1 1
            -2/9 | 1 -1 1
            1/90 | 1  2 4
            1/90 | 1 -2 4
            8/45 | 4  2 1
            8/45 | 4 -2 1
                   0  0 1
        """,
        """
            1    0 -21/4     0  21/4     0 -1 0
            0    1     1 -17/4 -17/4     1  1 0
            0   -1     1  17/4 -17/4    -1  1 0
            0  1/2   1/4  -5/2  -5/4     2  1 0
            0 -1/2   1/4   5/2  -5/4    -2  1 0
            0    2     4  -5/2    -5   1/2  1 0
            0   -2     4   5/2    -5  -1/2  1 0
            0   -1     0  21/4     0 -21/4  0 1
        """,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_matrices_fall_out(name: str) -> None:
    matrices, at, g, bt = PUBLISHED[name]
    assert matrices.at == matrix(at)
    assert matrices.g == matrix(g)
    assert matrices.bt == matrix(bt)


def check_identity(matrices: WinogradMatrices) -> None:
    """Aᵀ[(G g) ⊙ (Bᵀ d)] is the correlation for all g and d: compare the coefficients of d[l]
    g[k]."""
    at, g, bt = matrices.at, matrices.g, matrices.bt
    sizes = (len(at), *{len(row) for row in at}, len(g), *{len(row) for row in g}, len(bt))
    alpha = matrices.alpha
    assert sizes == (matrices.m, alpha, alpha, matrices.r, alpha)
    for j in range(matrices.m):
        for k in range(matrices.r):
            row = [sum(at[j][i] * g[i][k] * bt[i][n] for i in range(alpha)) for n in range(alpha)]
            assert row == [n == j + k for n in range(alpha)]


@pytest.mark.parametrize("points", Points)
@pytest.mark.parametrize("r", range(1, 7))
@pytest.mark.parametrize("m", range(1, 7))
def test_every_named_point_set_computes_the_correlation(m: int, r: int, points: Points) -> None:
    if m + r - 2 <= len(points.value):
        check_identity(winograd_matrices(m, r, points))
    else:
        with pytest.raises(ValueError, match=rf"F\({m},{r}\) needs {m + r - 2} finite points"):
            winograd_matrices(m, r, points)


@settings(deadline=None)
@given(
    m=st.integers(1, 7),
    points=st.lists(st.fractions(-9, 9, max_denominator=7), max_size=9, unique=True),
    infinity=st.sampled_from((1, -1)),
)
def test_any_different_points_compute_the_correlation(
    m: int, points: list[Fraction], infinity: int
) -> None:
    m = min(m, len(points) + 1)
    check_identity(WinogradMatrices(m, len(points) + 2 - m, tuple(points), infinity))


@pytest.mark.parametrize(
    ("m", "r", "points", "infinity", "message"),
    [
        (0, 3, (0,), 1, r"m and r of at least 1, got F\(0,3\)"),
        (2, 0, (), 1, r"m and r of at least 1, got F\(2,0\)"),
        (2, 3, (0, 1), 1, r"F\(2,3\) needs 3 finite points, got 2: 0, 1"),
        (2, 3, (0, 1, -1, HALF), 1, r"F\(2,3\) needs 3 finite points, got 4: 0, 1, -1, 1/2"),
        (2, 3, (0, HALF, Fraction(2, 4)), 1, "points must differ from each other: 0, 1/2, 1/2"),
        (2, 3, (0, 1, -1), 2, "infinity=2 must be 1 or -1"),
    ],
)
def test_what_is_no_minimal_algorithm_is_refused(
    m: int, r: int, points: tuple[Fraction | int, ...], infinity: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WinogradMatrices(m, r, points, infinity)
