"""Winograd's algorithm in NumPy: its results, its rounding, and the filter prepared for kernels."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.problems.conv import ConvProblem
from kernels.winograd.filter import as_array, filter_transform, nested
from kernels.winograd.matrices import Points, WinogradMatrices, winograd_matrices
from kernels.winograd.stages import (
    tiles,
    untiled,
    winograd_conv,
    winograd_roundings,
)
from tests.support.kernels import reference
from tests.support.kernels.arrays import Array, normal
from tests.support.kernels.windows import Axes, conv_problem, window
from tests.support.kernels.winograd_terms import winograd_terms
from tests.support.tolerance import EPS32, assert_within

F2 = winograd_matrices(2, 3, Points.INTEGER)
F4 = winograd_matrices(4, 3, Points.INTEGER)
F4_MIXED = winograd_matrices(4, 3, Points.MIXED)
F2_5 = winograd_matrices(2, 5, Points.INTEGER)
F2_5_MIXED = winograd_matrices(2, 5, Points.MIXED)
F6 = WinogradMatrices(6, 3, (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2)))
F3_2 = winograd_matrices(3, 2, Points.INTEGER)
EVERY = [F2, F4, F4_MIXED, F2_5, F2_5_MIXED, F6, F3_2]


def named(matrices: WinogradMatrices) -> str:
    return f"F({matrices.m},{matrices.r}) {','.join(map(str, matrices.points))}"


def wide(problem: ConvProblem) -> tuple[Array, Array]:
    x = normal((problem.n, problem.c, *problem.window.input), 1)
    return x.astype(np.float64), normal(problem.filter_shape, 2).astype(np.float64)


def check_equals_the_direct_sum(problem: ConvProblem, matrices: WinogradMatrices) -> None:
    """Compare to 1e-12 of the image's largest number, because a sum may itself cancel to nearly
    0."""
    x, weight = wide(problem)
    expected = reference.conv(x, weight, problem)
    y = winograd_conv(x, weight, problem, matrices)
    assert_within(y, expected, 1e-12 * np.abs(expected).max())


# Sizes: whole tiles, a last tile with one output, an image smaller than a tile.
@pytest.mark.parametrize("matrices", EVERY, ids=named)
@pytest.mark.parametrize(
    ("n", "size", "pads"),
    [
        (1, (12, 12), (1, 1, 1, 1)),
        (3, (13, 7), (1, 1, 1, 1)),
        (2, (9, 14), (0, 0, 0, 0)),
        (2, (8, 7), (0, 2, 1, 0)),
        (1, (5, 5), (3, 0, 0, 4)),
        (2, (7, 5, 6), (1, 1, 1, 1, 1, 1)),
        (1, (6, 7, 8), (0, 1, 2, 1, 0, 2)),
    ],
)
def test_winograd_equals_the_direct_sum(
    matrices: WinogradMatrices, n: int, size: Axes, pads: Axes
) -> None:
    kernel = (matrices.r,) * len(size)
    check_equals_the_direct_sum(conv_problem(n, 3, 5, window(size, kernel, pads=pads)), matrices)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), matrices=st.sampled_from(EVERY), axes=st.sampled_from((2, 2, 3)))
def test_any_size_and_padding_equals_the_direct_sum(
    data: st.DataObject, matrices: WinogradMatrices, axes: int
) -> None:
    def each(least: int, most: int) -> Axes:
        return tuple(data.draw(st.integers(least, most)) for _ in range(axes))

    size, pads = each(1, 8), each(0, 4) + each(0, 4)
    size = tuple(
        max(have, matrices.r - begin - end)
        for have, begin, end in zip(size, pads[:axes], pads[axes:], strict=True)
    )
    n, c, k = (data.draw(st.integers(1, 3)) for _ in range(3))
    seen = window(size, (matrices.r,) * axes, pads=pads)
    check_equals_the_direct_sum(conv_problem(n, c, k, seen), matrices)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (conv_problem(1, 4, 4, window((8, 8), (3, 5))), r"F\(2,3\) cannot compute .*kernel 3x5"),
        (conv_problem(1, 4, 4, window((8, 8), (3, 3), strides=(1, 2))), "stride 1x2"),
        (conv_problem(1, 4, 4, window((8, 8), (3, 3), dilations=(2, 1))), "dilation 2x1"),
        (conv_problem(1, 4, 4, window((8, 8), (3, 3)), groups=2), "groups 2"),
    ],
)
def test_what_minimal_filtering_cannot_compute_is_refused(
    problem: ConvProblem, message: str
) -> None:
    x, weight = wide(problem)
    with pytest.raises(ValueError, match=message):
        winograd_conv(x, weight, problem, F2)


@pytest.mark.parametrize(("n", "k", "size"), [(2, 5, (8, 9)), (1, 4, (8, 9)), (1, 5, (9, 8))])
def test_arrays_of_another_shape_are_refused(n: int, k: int, size: Axes) -> None:
    problem = conv_problem(1, 3, 5, window((8, 9), (3, 3)))
    x, weight = np.zeros((n, 3, *size)), np.zeros((k, 3, 3, 3))
    with pytest.raises(ValueError, match="x and weight must have"):
        winograd_conv(x, weight, problem, F2)


# Rounding


@pytest.mark.parametrize("matrices", EVERY, ids=named)
@pytest.mark.parametrize("size", [(13, 9), (6, 7, 5)], ids=str)
def test_the_bound_holds_in_float32_and_lies_above_the_exact_terms(
    matrices: WinogradMatrices, size: Axes
) -> None:
    axes = len(size)
    problem = conv_problem(2, 24, 5, window(size, (matrices.r,) * axes, pads=(1,) * 2 * axes))
    x, weight = wide(problem)
    terms = winograd_terms(x, weight, problem, matrices)
    # The direct sum's terms are among them.
    assert (terms >= reference.conv(np.abs(x), np.abs(weight), problem)).all()
    narrow = winograd_conv(x.astype(np.float32), weight.astype(np.float32), problem, matrices)
    # Here each matrix is rounded, and so is every term of its sums.
    roundings = problem.c + axes * (3 + matrices.r + 2 * matrices.alpha)
    assert_within(narrow, reference.conv(x, weight, problem), roundings * EPS32 * terms)


@pytest.mark.parametrize("matrices", [F2, F4_MIXED], ids=named)
def test_terms_of_one_product_are_those_of_the_matrices(matrices: WinogradMatrices) -> None:
    """One channel and one filter with a single number in each: Σ |Aᵀ| |G| |Bᵀ| along each axis."""
    alpha = matrices.alpha
    problem = conv_problem(1, 1, 1, window((alpha, alpha), (3, 3)))
    at, g, bt = (np.abs(as_array(each)) for each in (matrices.at, matrices.g, matrices.bt))
    if matrices is F4_MIXED:
        # -1 + 3/2 and 3/2 - 1, both of which the generated transform adds up.
        assert bt[1, 2] == bt[2, 3] == 0.5
        bt[1, 2] = bt[2, 3] = 2.5
    along = np.einsum("ji,ik,il->jkl", at, g, bt)
    for r, s, row, column in product(range(3), range(3), range(alpha), range(alpha)):
        x, weight = np.zeros((1, 1, alpha, alpha)), np.zeros((1, 1, 3, 3))
        x[0, 0, row, column], weight[0, 0, r, s] = -3, 2
        expected = 6 * np.outer(along[:, r, row], along[:, s, column])
        assert np.allclose(winograd_terms(x, weight, problem, matrices)[0, 0], expected, rtol=1e-12)


def test_roundings_count_the_filter_the_sum_and_each_axis() -> None:
    def along(c: int, axes: int, matrices: WinogradMatrices) -> int:
        seen = window((8,) * axes, (3,) * axes)
        return winograd_roundings(conv_problem(1, c, 1, seen), matrices)

    assert along(1, 2, F2) == 1 + 1 + 2 * (1 + 2)
    assert along(512, 2, F2) == 1 + 512 + 2 * (1 + 2)
    assert along(1, 3, F2) == 1 + 1 + 3 * (1 + 2)
    assert along(1, 2, F4) == 1 + 1 + 2 * (2 + 3)


def in_turn(left: Array, right: Array) -> Array:
    """Return left · right in float32, with the terms added one by one in a thread's order, on every
    machine."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for i in range(left.shape[-1]):
        total += left[..., i, None] * right[..., i, None, :]
    return total


def direct_in_turn(x: Array, weight: Array, problem: ConvProblem) -> Array:
    """Convolve 1×C×H×W → 1×K×P×Q in the order of a direct kernel: one sum over R, S and C."""
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    p, q = problem.window.output
    seen = [padded[:, r : r + p, s : s + q] for r, s in np.ndindex(3, 3)]
    taps = weight.transpose(0, 2, 3, 1).reshape(problem.k, -1)
    return in_turn(taps, np.concatenate(seen).reshape(-1, p * q)).reshape(1, problem.k, p, q)


def winograd_in_turn(
    x: Array, weight: Array, problem: ConvProblem, matrices: WinogradMatrices
) -> Array:
    """Convolve 1×C×H×W → 1×K×P×Q in float32, with U from float64 as kernels have it."""
    g, bt, at = (as_array(each) for each in (matrices.g, matrices.bt, matrices.at))
    u = nested(g, weight.astype(np.float64), 2).astype(np.float32)
    v = nested(bt.astype(np.float32), tiles(x, problem, matrices), 2)[0]
    counts = v.shape[1:3]
    u = u.reshape(*u.shape[:2], -1).transpose(2, 0, 1)
    v = v.reshape(problem.c, -1, len(u)).transpose(2, 0, 1)
    summed = in_turn(u, v).transpose(1, 2, 0).reshape(1, problem.k, *counts, *[matrices.alpha] * 2)
    return untiled(nested(at.astype(np.float32), summed, 2), problem)


def test_f2_rounds_as_well_as_the_direct_sum_and_mixed_points_better_than_integers() -> None:
    """Compare relative L2 errors with float64 for C = 512 and numbers distributed uniformly in [-1,
    1]."""
    problem = conv_problem(1, 512, 8, window((16, 16), (3, 3), pads=(1, 1, 1, 1)))
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (1, 512, 16, 16)).astype(np.float32)
    weight = random.uniform(-1, 1, problem.filter_shape).astype(np.float32)
    exact = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)

    def error(y: Array) -> float:
        return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))

    direct = error(direct_in_turn(x, weight, problem))
    f2, f4, mixed = (
        error(winograd_in_turn(x, weight, problem, each)) for each in (F2, F4, F4_MIXED)
    )
    assert direct < 2e-6
    assert f2 < direct
    assert direct < f4 < 6 * direct
    assert mixed < 0.75 * f4


# The filter that kernels are given


@pytest.mark.parametrize("points", Points)
@pytest.mark.parametrize(("m", "kernel"), [(2, (3, 3)), (4, (3, 3)), (2, (5, 5)), (2, (3, 3, 3))])
def test_the_transformed_filter_is_u_by_elements_then_channels_then_filters(
    m: int, kernel: Axes, points: Points
) -> None:
    matrices = winograd_matrices(m, kernel[0], points)
    weight, g = normal((6, 3, *kernel)), as_array(matrices.g)
    u = filter_transform(weight, m, points)
    assert u.shape == (matrices.alpha ** len(kernel), 4, 8)
    assert u.dtype == np.float32
    assert u.flags.c_contiguous
    assert not u[:, 3:].any()
    assert not u[:, :, 6:].any()
    taps = ("rs", "trs")[len(kernel) - 2]
    elements = ("xy", "zxy")[len(kernel) - 2]
    by_axis = ",".join(f"{element}{tap}" for element, tap in zip(elements, taps, strict=True))
    for k, c in product(range(6), range(3)):
        expected = np.einsum(
            f"{by_axis},{taps}->{elements}", *[g] * len(kernel), weight[k, c].astype(np.float64)
        )
        assert_within(u[:, c, k], expected.reshape(-1), EPS32 / 2 * np.abs(expected).max())


def test_the_transformed_filter_is_rounded_once() -> None:
    weight = normal((4, 4, 3, 3))
    exact = nested(as_array(F4.g), weight.astype(np.float64), 2)
    once = exact.astype(np.float32).reshape(4, 4, 36).transpose(2, 1, 0)
    assert np.array_equal(filter_transform(weight, 4, Points.INTEGER), once)


def test_a_filter_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match=r"same r along every axis, got .*\(4, 4, 3, 5\)"):
        filter_transform(normal((4, 4, 3, 5)), 2, Points.INTEGER)


def test_more_points_than_named_are_refused() -> None:
    with pytest.raises(ValueError, match=r"F\(6,3\) needs 7 finite points, got 5"):
        filter_transform(normal((4, 4, 3, 3)), 6, Points.INTEGER)
