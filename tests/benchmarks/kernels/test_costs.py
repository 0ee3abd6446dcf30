"""Products, workspace and bytes of each algorithm, and the page that shows them."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.kernels import costs
from benchmarks.kernels.accuracy import ONE_SUM, convolve, variants
from benchmarks.kernels.costs import (
    TILES,
    WAYS,
    cells,
    im2col,
    naive,
    tile_errors,
    winograd,
)
from benchmarks.kernels.suites import CUCONV, VGG_E
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ALGORITHMS
from kernels.problems.conv import same_padded
from kernels.problems.window import Window
from kernels.winograd.matrices import WinogradMatrices

LAYERS = {layer.name: layer.problem for layer in VGG_E}
SMALL = same_padded((4, 4), 3, 2, 3)  # 16 pixels, 2 channels, 3 filters
POINTWISE = same_padded((4, 4), 1, 2, 3)


def test_naive_sum_reads_each_operand_once() -> None:
    cost = naive(SMALL)
    assert cost.multiplications == 16 * 3 * 2 * 9
    assert cost.bytes == 4 * (2 * 16 + 3 * 2 * 9 + 3 * 16)
    assert cost.workspace_bytes == 0


def test_im2col_writes_and_reads_a_matrix_of_all_windows() -> None:
    cost = im2col(SMALL)
    assert cost.multiplications == naive(SMALL).multiplications
    assert cost.workspace_bytes == 4 * 16 * 2 * 9
    assert cost.bytes == naive(SMALL).bytes + 2 * cost.workspace_bytes


def test_im2col_copies_nothing_for_a_pointwise_convolution_unless_it_strides() -> None:
    assert im2col(POINTWISE) == naive(POINTWISE)
    window = Window((4, 4), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0), output=(2, 2))
    assert im2col(replace(POINTWISE, window=window)).workspace_bytes == 4 * 4 * 2


@pytest.mark.parametrize(("m", "tiles"), [(2, 4), (4, 1)])
def test_winograd_multiplies_the_places_of_each_tile(m: int, tiles: int) -> None:
    fused, apart = (winograd(SMALL, m, fused=each) for each in (True, False))
    places = (m + 2) ** 2
    assert fused.multiplications == apart.multiplications == places * tiles * 2 * 3
    assert fused.workspace_bytes == 0
    assert fused.bytes == 4 * (2 * 16 + places * 2 * 3 + 3 * 16)
    assert apart.workspace_bytes == 4 * places * tiles * (2 + 3)
    assert apart.bytes == fused.bytes + 2 * apart.workspace_bytes


@pytest.mark.parametrize("m", [2, 4])
def test_the_algorithms_multiply_as_often_as_the_tables_say(m: int) -> None:
    (algorithm,) = (a for a in ALGORITHMS if a.name == f"winograd F({m}x{m},3x3)")
    for problem in LAYERS.values():
        assert (
            algorithm.multiplications(problem) == winograd(problem, m, fused=True).multiplications
        )


def test_a_layer_that_winograd_does_not_compute_has_empty_cells() -> None:
    pointwise = next(layer for layer in CUCONV if layer.problem.window.kernel == (1, 1))
    (_, row) = cells("bytes moved, MB", [pointwise], 1)
    assert [text != "" for text in row[1:]] == ["F(" not in way for way in WAYS]


def test_errors_grow_with_the_tile_and_the_small_ones_are_lavin_and_grays() -> None:
    errors = {each.m: each for each in tile_errors()}
    assert tuple(errors) == TILES
    # Table 4's conv 3.2: F(2x2) 5.34e-5, F(4x4) 9.06e-4, on larger data.
    assert 1e-5 < errors[2].largest < 6e-5
    assert 1e-4 < errors[4].largest < 1e-3
    assert errors[2].over_direct < 0.6, "F(2×2) errs less than a direct sum, as the paper says"
    assert 2 < errors[4].over_direct < 6
    assert errors[8].over_direct > 10 * errors[6].over_direct > 20 * errors[4].over_direct
    assert [errors[m].saving for m in (2, 4, 6)] == [2.25, 4.0, pytest.approx(5.0625)]


def test_the_direct_sum_is_the_kernels_to_the_bit(device: CusimDevice) -> None:
    problem = same_padded((5, 6), 3, 40, 16)
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (1, problem.c, *problem.window.input)).astype(np.float32)
    weight = rng.uniform(-1, 1, problem.filter_shape).astype(np.float32)
    choice = variants(problem, device)[ONE_SUM]
    expected = costs.direct(x, weight, problem)
    assert np.array_equal(convolve(device, problem, choice, x, weight), expected)
    matrices = WinogradMatrices(2, 3, (0, 1, -1))
    ours = costs.winograd_sum(x, weight, problem, matrices)
    assert np.allclose(ours, expected, atol=3e-5)


def test_the_command_prints_every_table_of_a_suite() -> None:
    out = io.StringIO()
    costs.run(["c3d"], [8], Console(file=out, width=120), docs=False)
    for what in costs.TABLES:
        assert f"c3d, N = 8: {what}" in out.getvalue()
    assert "F(6×6)" in out.getvalue()
