"""Arithmetic counted as Lavin & Gray count it, compared with their tables, number by number."""

import re

import pytest

from benchmarks.kernels.suites import VGG_E
from benchmarks.papers.complexity import (
    FILTERS,
    TABLE_1,
    TABLE_1_FFT,
    TABLE_2,
    Complexity,
    fast_product,
    fft,
    matrices,
    matrix_of,
    paired,
    printed_product,
    shares,
    table_equation_23,
    table_ffts,
    transforms,
    winograd,
)
from kernels.winograd.matrices import Points, winograd_matrices
from tests.support.networks import SHARED

PAPER_TEXT = SHARED / "seeds" / "lavin-gray-2015-winograd.txt"


def numbers(of: Complexity) -> tuple[float, ...]:
    return of.products, of.data, of.filter, of.inverse


@pytest.mark.parametrize("m", FILTERS)
def test_a_filters_steps_compute_the_filter_transform(m: int) -> None:
    assert matrix_of(FILTERS[m]) == matrices(m).g


@pytest.mark.parametrize("m", [2, 4])
def test_the_transforms_are_those_of_the_kernels(m: int) -> None:
    assert matrices(m) == winograd_matrices(m, 3, Points.INTEGER)


def test_the_papers_instructions_are_those_of_pairs_and_ours_are_never_more() -> None:
    assert transforms(2).in_2d == (32, 28, 24)
    assert (transforms(4).filter, transforms(4).in_2d[1]) == (8, 72)
    assert [paired(m).in_2d[::2] for m in (2, 4, 6)] == [(32, 24), (156, 100), (416, 280)]
    for alpha, theirs in TABLE_1.items():
        ours = numbers(winograd(transforms(alpha - 2)))
        assert ours[0] == pytest.approx(theirs[0], abs=0.005)
        assert all(a < b + 0.005 for a, b in zip(ours, theirs, strict=True)), alpha


@pytest.mark.parametrize(("alpha", "index"), [(a, i) for a in TABLE_1 for i in range(4)])
def test_every_number_of_table_1_is_a_whole_count(alpha: int, index: int) -> None:
    """Count the instructions in one dimension; α′ follows from the tile."""
    theirs, m = TABLE_1[alpha][index], alpha - 2
    along = (None, 2 * alpha, 3 + alpha, alpha + m)[index]
    if along is None:
        assert theirs == round((alpha / m) ** 2, 2)
    else:
        count = round(theirs * alpha**2 / along)
        assert theirs == pytest.approx(along * count / alpha**2, abs=0.006)


@pytest.mark.parametrize("alpha", TABLE_1_FFT)
def test_the_ffts_numbers_fall_out_of_split_radix_transforms(alpha: int) -> None:
    plain, fast = (fft(alpha, fast=each) for each in (False, True))
    assert (plain.products, plain.data) == pytest.approx(TABLE_1_FFT[alpha], abs=0.0051)
    assert plain.data == plain.filter == plain.inverse
    assert numbers(fast) == pytest.approx(TABLE_2[alpha], abs=0.0051)
    assert not any("→" in cell for row in table_ffts() for cell in row)


def test_three_multiplications_make_a_complex_product_but_not_in_the_printed_order() -> None:
    for x, y in ((3 + 4j, 5 - 2j), (-1j, 1j), (2 + 0j, -3 + 1j)):
        assert fast_product(x, y) == x * y
        assert printed_product(x, y) == ((x * y).imag, (x * y).real)


def test_equation_23_adds_up_stage_by_stage() -> None:
    problem, counts = VGG_E[7].problem, transforms(4)  # 28 = 7 tiles of 4
    data, of_filter, inverse = counts.in_2d
    tiles, c, k = 49, problem.c, problem.k
    whole = tiles * (36 * c * k + data * c + inverse * k) + of_filter * c * k
    assert shares(problem, 4, counts) == pytest.approx(whole / problem.macs)
    _, *rows = table_equation_23(problem)
    gains = [[float(cell) for cell in row[1:]] for row in rows]
    assert all(row == sorted(row) for row in gains), "wider layers gain more"
    assert gains[3][-1] > gains[2][-1] > gains[1][-1] > gains[0][-1], "so do larger tiles"
    assert gains[3][0] < gains[0][0] < 1, "but not in a layer of one channel"


@pytest.mark.skipif(not PAPER_TEXT.is_file(), reason=f"needs the paper's text, {PAPER_TEXT}")
def test_the_tables_are_the_papers() -> None:
    lines = PAPER_TEXT.read_text().splitlines()
    found = [
        [float(n) for n in line.split()] for line in lines if re.match(r"\d+( \d+\.\d\d)+$", line)
    ]
    by_tile = {(int(row[0]), len(row)): tuple(row[1:]) for row in found}
    for alpha, theirs in TABLE_1.items():
        fft_half = TABLE_1_FFT.get(alpha, ())
        assert by_tile[alpha, 5 + len(fft_half)] == (*theirs, *fft_half)
    for alpha, theirs in TABLE_2.items():
        assert by_tile[alpha, 5] == theirs or alpha in TABLE_1
    for alpha in (16, 32, 64, 128, 256):
        assert by_tile[alpha, 3] == TABLE_1_FFT[alpha]
