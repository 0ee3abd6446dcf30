"""Fused Winograd beyond the common cases: any layer, split sums, accuracy, refusals."""

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.kernels.accuracy import convolve
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.split_sum import WinogradConfig
from kernels.convolution.winograd import TILES, WinogradConv, WinogradTile
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.winograd.matrices import Points
from tests.support.cases.conv import DIRECT, conv_case
from tests.support.cases.winograd import F2, F2_3D, F2_5, F4
from tests.support.kernels import reference, resources
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer
from tests.support.kernels.kernel_case import run
from tests.support.kernels.rig import of_drawn
from tests.support.kernels.windows import conv_problem, window

ALGORITHMS = (F2, F4, F2_5, F2_3D)
EVERY_TILE = pytest.mark.parametrize(
    ("algorithm", "tile"),
    [(algorithm, tile) for algorithm in ALGORITHMS for tile in TILES[algorithm.positions]],
    ids=str,
)
WIDE = 99 << 10
"""The shared memory per block on most GPUs: sm_86, 89 and 120."""


def same(algorithm: WinogradConv, c: int, k: int, *size: int) -> ConvProblem:
    """Return a layer whose output is as large as its input, as in most networks."""
    r, axes = algorithm.r, algorithm.axes
    return conv_problem(1, c, k, window(size, (r,) * axes, pads=(r // 2,) * 2 * axes))


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw any layer that has a kernel, in any configuration, split into more parts than the
    planner would use."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    axes, r = algorithm.axes, algorithm.r
    pads = tuple(draw(st.integers(0, r + 1)) for _ in range(2 * axes))
    least = (max(1, r - begin - end) for begin, end in zip(pads, pads[axes:], strict=False))
    size = tuple(fewest + draw(st.integers(0, 7)) for fewest in least)
    c, k = draw(st.integers(1, 36)), draw(st.integers(1, 70))
    problem = conv_problem(draw(st.integers(1, 4)), c, k, window(size, (r,) * axes, pads=pads))
    layer = drawn_layer(draw, problem)
    config = WinogradConfig(
        draw(st.sampled_from(algorithm.points)),
        draw(st.sampled_from(TILES[algorithm.positions])),
        draw(st.integers(1, 6)),
    )
    return layer, ConvChoice(algorithm, config)


test_any_layer_is_its_reference, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, drawn_cases(), few=20, many=2000
)


@EVERY_TILE
def test_a_split_sum_is_the_same_launch_after_launch_without_clearing_anything(
    device: CusimDevice, algorithm: WinogradConv, tile: WinogradTile
) -> None:
    problem = same(algorithm, 40, 36, *[5] * algorithm.axes)
    config = WinogradConfig(algorithm.points[0], tile, 5)
    layer = Layer("split", problem, dense(40), dense(36))
    run(conv_case(layer, ConvChoice(algorithm, config)), device, times=3)


@pytest.mark.parametrize("c", [64, 128])
@pytest.mark.parametrize(
    ("algorithm", "points", "times"),
    [(F2, Points.INTEGER, 2), (F4, Points.INTEGER, 20), (F4, Points.MIXED, 20)],
)
def test_errors_are_the_papers_beside_those_of_the_direct_sum(
    device: CusimDevice, algorithm: WinogradConv, points: Points, times: int, c: int
) -> None:
    problem = same(algorithm, c, 32, 12, 12)
    rng = np.random.default_rng(c)
    shapes = (1, c, 12, 12), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)

    def largest_error(choice: ConvChoice) -> float:
        return float(np.abs(convolve(device, problem, choice, x, weight) - truth).max())

    direct = largest_error(ConvChoice(DIRECT, DIRECT.configs(problem)[0]))
    config = WinogradConfig(points, TILES[algorithm.positions][0])
    error = largest_error(ConvChoice(algorithm, config))
    assert error <= times * direct
    # More than rounding alone would be a wrong coefficient that the promise is too wide to show.
    assert error > direct / 20


def test_mixed_points_err_less_than_integers(device: CusimDevice) -> None:
    problem = same(F4, 64, 32, 12, 12)
    rng = np.random.default_rng(1)
    shapes = (1, 64, 12, 12), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)
    integer, mixed = (
        np.abs(convolve(device, problem, ConvChoice(F4, config), x, weight) - truth).mean()
        for points in (Points.INTEGER, Points.MIXED)
        for config in [WinogradConfig(points, TILES[36][0])]
    )
    assert mixed < 0.9 * integer
    assert F4.configs(problem)[0].points is Points.MIXED


def test_a_nan_spreads_over_the_tiles_that_read_it_and_no_further(device: CusimDevice) -> None:
    problem = same(F4, 8, 8, 12, 12)
    x, weight = normal((1, 8, 12, 12)), normal(problem.filter_shape)
    choice = ConvChoice(F4, WinogradConfig(Points.MIXED, TILES[36][0]))
    clean = convolve(device, problem, choice, x, weight)
    x[0, 3, 6, 5] = np.nan  # of the image's 3 × 3 tiles, seen by the one in the middle alone
    spread = convolve(device, problem, choice, x, weight)
    middle = np.zeros((12, 12), bool)
    middle[4:8, 4:8] = True
    assert np.isnan(spread[..., middle]).all()
    assert np.array_equal(spread[..., ~middle], clean[..., ~middle])


@EVERY_TILE
def test_the_cost_model_is_told_what_a_block_takes(
    algorithm: WinogradConv, tile: WinogradTile
) -> None:
    problem = same(algorithm, 8, 8, *[5] * algorithm.axes)
    table = resources.read()
    for points in algorithm.points:
        config = WinogradConfig(points, tile)
        (work,) = algorithm.work(problem, config)
        (launched,) = algorithm.launches(problem, config, ConvTensors(dense(8), dense(8)))
        cell = table[f"winograd.cu {launched.instantiation.expression}"]["90a"].split()
        assert work.shared_bytes == launched.shared_bytes + int(cell[2])
        assert work.threads == launched.block[0]
        # What the compiler was asked to leave room for, in each quarter of a multiprocessor.
        warps = -(-tile.resident * work.threads // 32 // 4)
        assert warps * 32 * int(cell[0]) <= 16384


def test_every_gpu_has_tiles_that_fit_its_blocks() -> None:
    def fitting(algorithm: WinogradConv, nbytes: int) -> set[str]:
        problem = same(algorithm, 64, 64, *[8] * algorithm.axes)
        return {
            str(config.tile)
            for each, config, _ in choices(problem, nbytes)
            if each.name == algorithm.name
        }

    assert fitting(F2, 64 << 10) == {"16x32x8"}  # sm_75
    assert fitting(F4, 64 << 10) == set()
    assert fitting(F2, WIDE) == {"32x32x8", "16x64x8", "16x32x8"}
    assert fitting(F4, WIDE) == {"16x32x4"}
    assert fitting(F4, 163 << 10) == {"32x32x4", "16x32x8", "16x32x4"}  # sm_80
    assert fitting(F2_3D, 163 << 10) == {"16x32x4"}
    assert fitting(F4, 227 << 10) == {str(tile) for tile in TILES[36]}


@pytest.mark.parametrize(
    ("problem", "x", "y"),
    [
        (same(F4, 64, 64, 224, 224).with_batch(8), Pixels(64, 8192), dense(64)),
        (same(F4, 64, 64, 224, 224).with_batch(8), dense(64), Pixels(64, 8192)),
        (same(F4, 2**13, 2**13, 4, 4), dense(2**13), dense(2**13)),
    ],
    ids=["x", "y", "filter"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels
) -> None:
    with pytest.raises(ValueError, match="beyond 32 bits"):
        F4.launches(problem, F4.configs(problem)[0], ConvTensors(x, y))


def test_pixels_of_other_channels_and_another_filter_are_refused() -> None:
    problem = same(F4, 12, 8, 5, 5)
    config = F4.configs(problem)[0]
    with pytest.raises(ValueError, match="12 channels, but x has 8"):
        F4.launches(problem, config, ConvTensors(dense(8), dense(8)))
    with pytest.raises(ValueError, match="the filter must have shape"):
        F4.prepare_filter(normal((8, 12, 3, 1)), problem, config)
