"""Programs that multiply a matrix by a vector: correct, with few instructions and few live
values."""

from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.winograd.matrices import Matrix, Points, WinogradMatrices, winograd_matrices
from kernels.winograd.program import Kind, Program, Value, program
from tests.support.kernels.winograd_terms import magnitudes, matrix_of

HALF = Fraction(1, 2)
F_6_3 = WinogradMatrices(6, 3, (0, 1, -1, 2, -2, HALF, -HALF))
THIRDS = WinogradMatrices(3, 2, (Fraction(1, 3), Fraction(-1, 3), Fraction(2, 3)))


def absolute(matrix: Matrix) -> Matrix:
    return tuple(tuple(map(abs, row)) for row in matrix)


def rows(*lists: Iterable[int | Fraction]) -> Matrix:
    return tuple(tuple(map(Fraction, each)) for each in lists)


@pytest.mark.parametrize("matrices", [winograd_matrices(2, 3, Points.INTEGER), F_6_3, THIRDS])
def test_a_program_computes_its_matrix(matrices: WinogradMatrices) -> None:
    for matrix in (matrices.at, matrices.g, matrices.bt):
        assert matrix_of(program(matrix)) == matrix


@settings(deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda columns: st.lists(
            st.tuples(*[st.sampled_from((0, 1, -1, 2, -2, 3, HALF, Fraction(1, 3)))] * columns),
            min_size=1,
            max_size=5,
        )
    )
)
def test_any_matrix_is_computed_by_no_more_than_its_terms(
    lists: list[tuple[int | Fraction, ...]],
) -> None:
    matrix = rows(*lists)
    computed = program(matrix)
    assert matrix_of(computed) == matrix
    assert computed.instructions <= sum(c != 0 for row in matrix for c in row)
    least = absolute(matrix)
    assert all(
        more >= less
        for row, bound in zip(magnitudes(computed), least, strict=True)
        for more, less in zip(row, bound, strict=True)
    )


# Along one axis: instructions of the data transform and of the inverse transform.
@pytest.mark.parametrize(
    ("matrices", "data", "inverse"),
    [
        (winograd_matrices(2, 3, Points.INTEGER), 4, 4),
        (winograd_matrices(4, 3, Points.INTEGER), 12, 10),
        (winograd_matrices(4, 3, Points.MIXED), 14, 12),
        (winograd_matrices(2, 5, Points.INTEGER), 12, 8),
        (winograd_matrices(2, 5, Points.MIXED), 14, 8),
        (F_6_3, 24, 20),
    ],
)
def test_transforms_take_few_instructions(
    matrices: WinogradMatrices, data: int, inverse: int
) -> None:
    assert program(matrices.bt).instructions == data
    assert program(matrices.at).instructions == inverse


def in_2d(count: int, rows: int, columns: int) -> int:
    """Return the instructions of a rows×columns transform along both axes, first columns and then
    rows."""
    return count * (columns + rows)


def test_nested_transforms_take_no_more_instructions_than_the_papers() -> None:
    """Lavin & Gray, sections 4.1 and 4.3: 32 and 24 for F(2×2), 156 and 100 for F(4×4)."""
    f2, f4 = (winograd_matrices(m, 3, Points.INTEGER) for m in (2, 4))
    assert in_2d(program(f2.bt).instructions, 4, 4) == 32
    assert in_2d(program(f2.at).instructions, 2, 4) == 24
    assert in_2d(program(f4.bt).instructions, 6, 6) == 144  # the paper: 156
    assert in_2d(program(f4.at).instructions, 4, 6) == 100


def test_even_and_odd_halves_are_shared() -> None:
    computed = program(rows((3, 1, 1), (3, 1, -1)))
    assert computed.instructions == 3
    assert program(rows((3, 1, 1))).instructions == 2


def test_a_multiple_of_a_pair_is_shared() -> None:
    assert program(rows((1, 4, 0), (2, 8, 1))).instructions == 2


@pytest.mark.parametrize("matrix", [rows((3, 5, 1), (3, 5, -1)), rows((3, 5, 1, 0), (3, 5, 0, 1))])
def test_sharing_leaves_coefficients_exact_in_binary(matrix: Matrix) -> None:
    """A half or a pair 3x + 5y is not a multiple of anything with a coefficient of 1."""
    coefficients = [c for terms in program(matrix).steps.values() for c in terms.values()]
    assert {c.denominator for c in coefficients} == {1}


def test_a_coefficient_costs_only_where_none_is_one() -> None:
    assert program(rows((2, 3))).instructions == 2
    assert program(rows((1, 3))).instructions == 1
    assert program(rows((-1, 3))).instructions == 1
    assert program(rows((5, 0))).instructions == 1
    assert program(rows((1, 0))).instructions == 0


def test_depth_counts_the_roundings_on_the_longest_way() -> None:
    assert program(rows((1, 1, 1, 1))).depth == 3
    assert program(rows((3, 1, 1), (3, 1, -1))).depth == 2
    assert program(rows((1, 0))).depth == 0


def test_magnitudes_count_what_cancels() -> None:
    """The even and odd halves of the mixed points' d[2] and d[3] cancel in part."""
    f2, f4, mixed = (
        program(winograd_matrices(m, 3, points).bt)
        for m, points in ((2, Points.INTEGER), (4, Points.INTEGER), (4, Points.MIXED))
    )
    assert magnitudes(f2) == absolute(matrix_of(f2))
    assert magnitudes(f4) == absolute(matrix_of(f4))
    assert matrix_of(mixed)[1:3] == rows(
        (0, -1, HALF, 5 * HALF, 1, 0), (0, 1, -5 * HALF, HALF, 1, 0)
    )
    assert magnitudes(mixed)[1:3] == rows(*[(0, 1, 5 * HALF, 5 * HALF, 1, 0)] * 2)


def most_live(computed: Program) -> int:
    """Return the number of values held at the same time, including the step's result: unused inputs
    and results."""
    steps = list(computed.steps.items())
    last = {each: i for i, (_, terms) in enumerate(steps) for each in terms}
    held = {Value(Kind.INPUT, j) for j in range(computed.columns)}
    most = len(held)
    for i, (value, terms) in enumerate(steps):
        held = {each for each in held if each not in terms or last[each] > i} | {value}
        most = max(most, len(held))
    return most


@pytest.mark.parametrize(
    ("m", "r", "points", "live"),
    [
        (2, 3, Points.INTEGER, 5),
        (4, 3, Points.INTEGER, 7),
        (4, 3, Points.MIXED, 7),
        (2, 5, Points.INTEGER, 7),
    ],
)
def test_few_values_are_live_at_once(m: int, r: int, points: Points, live: int) -> None:
    matrices = winograd_matrices(m, r, points)
    assert most_live(program(matrices.bt)) <= live
    assert most_live(program(matrices.at)) <= live
