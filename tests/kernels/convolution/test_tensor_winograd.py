"""Fused Winograd on tensor cores: any layer, split sums, accuracy, regions, planted defects."""

from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kernels import accuracy, suites
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.split_sum import WinogradConfig
from kernels.convolution.tensor_gemm import to_tf32
from kernels.convolution.tensor_winograd import (
    LARGEST_WEIGHT,
    TENSOR_WINOGRAD_TILES,
    TensorWinogradTile,
    region_of,
)
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.winograd import stages as oracle
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import Points, winograd_matrices
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import TENSOR, at_precision
from tests.support.cases.tensor_winograd import F2
from tests.support.cases.winograd_nonfused import F2 as F2_NONFUSED
from tests.support.kernels import reference, resources
from tests.support.kernels.arrays import Array, normal
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window

EVERY_TILE = pytest.mark.parametrize("tile", TENSOR_WINOGRAD_TILES, ids=str)


def same(c: int, k: int, *size: int) -> ConvProblem:
    """Return a layer whose output is as large as its input, as in most networks."""
    problem = conv_problem(1, c, k, window(size, (3, 3), pads=(1, 1, 1, 1)))
    return replace(problem, precision=Precision.FP16)


def halves(channels: int) -> Pixels:
    """Return a layout without gaps between pixels."""
    return Pixels(channels, channels, stored=HALF)


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw any layer that has a kernel, in any configuration, split into more parts than the
    planner would use."""
    pads = tuple(draw(st.integers(0, 4)) for _ in range(4))
    least = (max(1, 3 - begin - end) for begin, end in zip(pads[:2], pads[2:], strict=True))
    size = tuple(fewest + draw(st.integers(0, 20)) for fewest in least)
    c, k = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    problem = conv_problem(draw(st.integers(1, 5)), c, k, window(size, (3, 3), pads=pads))
    layer = drawn_layer(draw, problem)
    tile = draw(st.sampled_from(TENSOR_WINOGRAD_TILES))
    config = WinogradConfig(Points.INTEGER, tile, draw(st.integers(1, 6)))
    return at_precision(layer, Precision.FP16), ConvChoice(F2, config)


test_any_layer_is_its_reference, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, drawn_cases(), few=15, many=1000
)


@EVERY_TILE
def test_a_split_sum_is_the_same_launch_after_launch_without_clearing_anything(
    device: CusimDevice, tile: TensorWinogradTile
) -> None:
    layer = Layer("split", same(80, 36, 5, 6), halves(80), halves(36))
    config = WinogradConfig(Points.INTEGER, tile, 5)
    run(conv_case(layer, ConvChoice(F2, config)), device, times=3)


@pytest.mark.parametrize("layer", accuracy.LAYERS, ids=lambda each: each.name)
def test_errors_lie_between_those_of_direct_and_of_non_fused(
    device: CusimDevice, layer: suites.Layer
) -> None:
    """Both Winograd algorithms round the transformed data and filter to 11 bits; no product is
    rounded."""
    problem = same(layer.problem.c, 32, 12, 12)
    rng = np.random.default_rng(1)
    shapes = (1, problem.c, 12, 12), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    exact = replace(problem, precision=Precision.FP32)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), exact)

    def errors(choice: ConvChoice) -> Array:
        return np.abs(accuracy.convolve(device, problem, choice, x, weight) - truth)

    direct, fused, apart = (
        errors(ConvChoice(each, each.configs(problem)[0])) for each in (TENSOR, F2, F2_NONFUSED)
    )
    assert direct.max() < fused.max() < accuracy.AT_MOST["winograd F(2x2,3x3)"] * direct.max()
    assert direct.mean() < fused.mean()
    assert fused.mean() == pytest.approx(apart.mean(), rel=0.02)


def test_small_numbers_lose_no_more_than_a_quarter_of_the_transformed_data_does(
    device: CusimDevice,
) -> None:
    """Below 2^-12, a quarter has fewer bits, so its error is at most 2^-23 times the filter."""
    problem = same(64, 32, 12, 12)
    rng = np.random.default_rng(1)
    shape = (1, 64, 12, 12)
    x = (2.0**-14 * rng.uniform(-1, 1, shape)).astype(np.float16).astype(np.float32)
    weight = rng.uniform(-1, 1, problem.filter_shape).astype(np.float16).astype(np.float32)
    exact = replace(problem, precision=Precision.FP32)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), exact)
    y = accuracy.convolve(device, problem, ConvChoice(F2, F2.configs(problem)[0]), x, weight)
    # At every position U, 9/16 on average or less, by errors of random signs, of 64 channels.
    assert np.abs(y - truth).max() < 2.0**-11 * np.abs(truth).max() + 9 * 8 * 2.0**-23


def test_a_weight_without_halves_once_transformed_is_refused() -> None:
    problem = same(8, 4, 5, 5)
    config = F2.configs(problem)[0]
    weight = np.full(problem.filter_shape, LARGEST_WEIGHT, np.float32)
    assert np.isfinite(F2.prepare_filter(weight, problem, config)).all()
    with pytest.raises(ValueError, match=r"weights up to 7278; the largest weight is 7\.29e\+03"):
        F2.prepare_filter(1.001 * weight, problem, config)


@pytest.mark.parametrize("channels", [64, 128, 256, 512])
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.TF32], ids=str)
def test_in_11_bits_4x4_loses_too_much_whatever_the_precision(
    precision: Precision, channels: int
) -> None:
    """Check the numbers in docs/decisions/winograd-in-fp16.md with fused stages in NumPy."""
    problem = replace(same(channels, 32, 12, 12), precision=Precision.FP32)
    rng = np.random.default_rng(1)
    shapes = (1, channels, 12, 12), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)

    def stored(array: Array) -> Array:
        return array.astype(precision.stored).astype(np.float64)

    def rounded(array: Array) -> Array:
        return to_tf32(array.astype(np.float32)).astype(np.float64)  # halves are TF32 numbers

    def mean_error(y: Array) -> float:
        return float(np.abs(stored(y) - truth).mean())

    convolved = reference.conv(rounded(stored(x)), rounded(stored(weight)), problem)
    direct, times = mean_error(convolved), {}
    for m, points in ((2, Points.INTEGER), (4, Points.MIXED)):
        matrices = winograd_matrices(m, 3, points)
        g, bt, at = map(as_array, (matrices.g, matrices.bt, matrices.at))
        u, v = nested(g, weight, 2), nested(bt, oracle.tiles(stored(x), problem, matrices), 2)
        products = oracle.products(rounded(stored(u)), rounded(stored(v)))
        times[m] = mean_error(oracle.untiled(nested(at, products, 2), problem)) / direct
    assert 1.6 < times[2] < 2.0
    assert 5.8 < times[4] < 7.8


def test_a_nan_spreads_no_further_than_the_tiles_that_read_it(device: CusimDevice) -> None:
    problem = same(8, 8, 12, 12)
    x, weight = normal((1, 8, 12, 12)), normal(problem.filter_shape)
    choice = ConvChoice(F2, F2.configs(problem)[0])
    clean = accuracy.convolve(device, problem, choice, x, weight)
    x[0, 3, 5, 6] = np.nan
    spread = accuracy.convolve(device, problem, choice, x, weight)
    assert np.isnan(spread[..., 4:7, 5:8]).all()  # the outputs whose windows have it
    tiles = np.zeros((12, 12), bool)
    tiles[4:8, 4:8] = True
    assert np.array_equal(spread[..., ~tiles], clean[..., ~tiles])


@given(
    st.integers(1, 9),
    st.integers(1, 130),
    st.integers(1, 130),
    st.sampled_from([tile.bm for tile in TENSOR_WINOGRAD_TILES]),
)
def test_regions_fit_a_block_and_cover_every_tile_once(
    n: int, rows: int, columns: int, bm: int
) -> None:
    region = region_of(n, rows, columns, bm, 2, 3)
    assert region.images * region.rows * region.columns <= bm
    assert region.pixels(2, 3) <= 8 * bm  # PIXELS of the kernel
    along = list(zip((n, rows, columns), (region.images, region.rows, region.columns), strict=True))
    assert region.images == 1 or along[1:] == [(rows, rows), (columns, columns)]
    starts = [range(0, whole, part) for whole, part in along]
    covered = Counter(
        min(whole, start + part) - start
        for (whole, part), each in zip(along, starts, strict=True)
        for start in each
    )
    assert sum(length * times for length, times in covered.items()) == n + rows + columns
    config = WinogradConfig(
        Points.INTEGER, next(tile for tile in TENSOR_WINOGRAD_TILES if tile.bm == bm)
    )
    problem = same(16, 40, 2 * rows, 2 * columns).with_batch(n)
    (launched,) = F2.launches(problem, config, ConvTensors(halves(16), halves(40)))
    (work,) = F2.work(problem, config)
    assert prod(launched.grid) == 2 * prod(map(len, starts)) == work.blocks


def test_images_of_few_tiles_share_a_block() -> None:
    assert region_of(8, 4, 4, 64, 2, 3).images == 4
    assert region_of(8, 7, 7, 64, 2, 3).images == 1
    # Square regions read fewest pixels.
    eight = region_of(1, 56, 56, 64, 2, 3)
    assert (eight.rows, eight.columns) == (8, 8)


@EVERY_TILE
def test_the_cost_model_is_told_what_a_block_takes(tile: TensorWinogradTile) -> None:
    problem = same(8, 8, 5, 5)
    table = resources.read()
    config = WinogradConfig(Points.INTEGER, tile)
    (work,) = F2.work(problem, config)
    (launched,) = F2.launches(problem, config, ConvTensors(halves(8), halves(8)))
    cell = table[f"tensor_winograd.cu {launched.instantiation.expression}"]["90a"].split()
    assert work.shared_bytes == launched.shared_bytes + int(cell[2])
    assert work.threads == launched.block[0]
    # What the compiler was asked to leave room for: 512 threads of a multiprocessor.
    assert 512 * int(cell[0]) <= 65536
    # An mma is of 16 tiles, 8 filters and 16 channels.
    assert work.products * work.threads / 32 == 16 * tile.bm * tile.bn / (16 * 8)


def test_every_gpu_with_room_for_a_block_has_tiles_that_fit() -> None:
    def fitting(nbytes: int) -> set[str]:
        found = choices(same(64, 64, 8, 8), nbytes)
        return {str(each.config.tile) for each in found if each.algorithm == F2}

    assert fitting(64 << 10) == set()  # sm_75
    assert fitting(99 << 10) == {"32x32x16"}  # sm_86, 89 and 120
    assert fitting(163 << 10) == {"64x32x16", "32x32x16"}  # sm_80


def test_channels_are_split_only_where_each_block_has_chunks_left() -> None:
    assert {each.split for each in F2.configs(same(64, 64, 8, 8))} == {1, 2}
    assert {each.split for each in F2.configs(same(40, 64, 8, 8))} == {1}


@pytest.mark.parametrize(
    ("problem", "x", "y"),
    [
        (same(64, 64, 224, 224).with_batch(8), Pixels(64, 8192, stored=HALF), halves(64)),
        (same(64, 64, 224, 224).with_batch(8), halves(64), Pixels(64, 8192, stored=HALF)),
        (same(2**14, 2**14, 4, 4), halves(2**14), halves(2**14)),
    ],
    ids=["x", "y", "filter"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels
) -> None:
    with pytest.raises(ValueError, match="beyond 32 bits"):
        F2.launches(problem, F2.configs(problem)[0], ConvTensors(x, y))


def test_pixels_of_other_channels_and_another_filter_are_refused() -> None:
    problem = same(12, 8, 5, 5)
    config = F2.configs(problem)[0]
    with pytest.raises(ValueError, match="12 channels, but x has 8"):
        F2.launches(problem, config, ConvTensors(halves(8), halves(8)))
    with pytest.raises(ValueError, match="must be float16"):
        F2.launches(problem, config, ConvTensors(dense(12), dense(8)))
    with pytest.raises(ValueError, match="the filter must have shape"):
        F2.prepare_filter(normal((8, 12, 3, 1)), problem, config)


def test_the_filter_is_four_times_the_non_fused_algorithms() -> None:
    problem = same(20, 10, 5, 5)
    weight = normal(problem.filter_shape)
    one, other = F2.configs(problem)[0], F2_NONFUSED.configs(problem)[0]
    prepared = F2.prepare_filter(weight, problem, one)
    assert prepared.dtype == HALF
    assert prepared.shape == (16 * 12, 24)
    u = F2_NONFUSED.prepare_filter(weight, replace(problem, precision=Precision.TF32X3), other)
    assert np.array_equal(prepared[:, :20], (4 * u).astype(HALF))
    assert not prepared[:, 20:].any()


DEFECTS = {
    "a fragment's other half": ("filters[n + i / 2][i % 2]", "filters[n + i / 2][1 - i % 2]"),
    "a swizzle that only loads have": (
        "v + stage * V + at(tile, pair / 4) + pair % 4 * 4",
        "v + stage * V + tile * ROW + pair * 4",
    ),
    "a stage that stays": ("stage = 1 - stage)", "stage = stage)"),
    "pixels copied over those to be read": (
        "copy_pixels(chunk + 2, stage)",
        "copy_pixels(chunk + 2, 1 - stage)",
    ),
    "odd columns beside even ones": ("w % 2) * half + w / 2", "0) * half + w"),
}


@pytest.mark.parametrize("edit", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    layer = Layer("of several chunks and rows", same(70, 40, 8, 10), halves(70), halves(40))
    config = WinogradConfig(Points.INTEGER, TENSOR_WINOGRAD_TILES[1], 2)
    case = conv_case(layer, ConvChoice(F2, config))
    assert notices(replaced(tmp_path, "tensor_winograd.cu", *edit), [case])
