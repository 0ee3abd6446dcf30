"""Convolutions on tensor cores beyond the common cases: any layer, accuracy, filters, registers."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.convolution.algorithms import ConvChoice, candidates
from kernels.convolution.implicit_gemm import TILES, TileConfig, inner_size
from kernels.convolution.tensor_gemm import TENSOR_TILES, TensorTile, to_tf32
from kernels.layout.pixels import Pixels
from kernels.problems.conv import Projection
from kernels.problems.precision import HALF, Precision
from tests.cusim.device import CusimDevice, Order
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import DIRECT, conv_case
from tests.support.cases.tensor_gemm import PRECISIONS, TENSOR, at_precision
from tests.support.kernels import resources
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import (
    DIRECT_LAYERS,
    GEMM_LAYERS,
    Layer,
    dense,
    filled,
    odd,
    within,
)
from tests.support.kernels.kernel_case import KernelCase, run, view
from tests.support.kernels.windows import ON_A_DEVICE, conv_problem, window

EVERY_PRECISION = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda each: each.value)

_VGG = conv_problem(1, 128, 256, window((56, 56), (3, 3), pads=(1, 1, 1, 1)))
_3x3 = window((6, 7), (3, 3), pads=(1, 1, 1, 1))


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(order=Order.RANDOM)
    yield device
    device.close()


@st.composite
def projecting_layers(draw: st.DrawFn) -> Layer:
    """A sum of two 1×1 convolutions; in fp16, as no projection is in fp32."""
    c, k, projected = (draw(st.integers(1, most)) for most in (70, 38, 70))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(2))
    size = tuple(draw(st.integers(1, 9)) for _ in range(2))
    projection = Projection(projected, size, strides)
    problem = conv_problem(draw(st.integers(1, 4)), c, k, window(projection.output, (1, 1)))
    problem = replace(problem, precision=Precision.FP16, projection=projection)
    places = st.sampled_from((dense, filled, within, odd))
    x, y, residual = (draw(places)(channels) for channels in (c, k, projected))
    return Layer("drawn", problem, x, y, residual, draw(st.booleans()))


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """A layer at a precision, by any tile, split further than it would be."""
    layer = draw(layers() | projecting_layers())
    layer = at_precision(layer, draw(st.sampled_from(PRECISIONS)))
    tile = draw(st.sampled_from(TENSOR.tiles(layer.problem)))
    return layer, ConvChoice(TENSOR, TileConfig(tile, draw(st.integers(1, 8))))


@settings(ON_A_DEVICE, max_examples=60)
@given(chosen())
def test_any_layer_is_its_reference_by_any_tile(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


@pytest.mark.slow
@settings(ON_A_DEVICE, max_examples=3000)
@given(chosen())
def test_very_many_layers_are_their_reference(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


def _error(case: KernelCase, device: CusimDevice) -> float:
    """The largest error of y, by root mean square of y."""
    check = case.check()
    y = view(run(case, device), check.layout)
    return float(np.abs(y - check.expected).max() / np.sqrt(np.mean(check.expected**2)))


@pytest.mark.parametrize("channels", [64, 128, 256, 512])
def test_three_tf32_products_are_at_most_twice_as_far_off_as_float32(
    device: CusimDevice, channels: int
) -> None:
    """On layers as in Lavin & Gray's table 4, though tensor cores truncate sums."""
    layer = Layer("as in VGG", conv_problem(1, channels, 32, _3x3), dense(channels), dense(32))
    direct = _error(conv_case(layer, ConvChoice(DIRECT, TileConfig(TILES[4]))), device)
    at = at_precision(layer, Precision.TF32X3)
    config = TileConfig(TENSOR.tiles(at.problem)[3])
    assert _error(conv_case(at, ConvChoice(TENSOR, config)), device) <= 2 * direct


@EVERY_PRECISION
def test_every_configuration_is_among_the_cases(precision: Precision) -> None:
    wanted = {
        launch.instantiation
        for layer in [at_precision(each, precision) for each in DIRECT_LAYERS + GEMM_LAYERS]
        for config in TENSOR.configs(layer.problem)
        for launch in TENSOR.launches(layer.problem, config, layer.x, layer.y)
    }
    units = 2 if precision is Precision.FP16 else 1
    assert len(wanted) == units * len(TENSOR_TILES)
    assert wanted <= set(INSTANTIATIONS)


@EVERY_PRECISION
def test_the_cost_model_knows_the_registers(precision: Precision) -> None:
    made_with, table = resources.read()
    if made_with != resources.compiler():
        pytest.skip(f"the table is {made_with}'s; this is {resources.compiler()}")
    problem = replace(conv_problem(1, 64, 64, _3x3), precision=precision)
    for config in TENSOR.configs(problem):
        (work,) = TENSOR.work(problem, config)
        kernel = TENSOR.instantiation(problem, config.tile)
        row = table[f"{kernel.source} {kernel.expression}"]["90a"]
        assert work.registers == pytest.approx(int(row.split()[0]), abs=10), kernel


def test_a_projection_without_what_it_projects_is_refused() -> None:
    plain = replace(conv_problem(1, 8, 12, window((4, 4), (1, 1))), precision=Precision.FP16)
    problem = replace(plain, projection=Projection(20, (8, 8), (2, 2)))
    config = TENSOR.configs(problem)[0]
    x, y, residual = (Pixels(each, each, stored=HALF) for each in (8, 12, 20))
    TENSOR.launches(problem, config, x, y, residual)
    with pytest.raises(ValueError, match="no residual to project"):
        TENSOR.launches(problem, config, x, y)
    with pytest.raises(ValueError, match="20 channels are added, but the residual has 12"):
        TENSOR.launches(problem, config, x, y, y)
    wide = replace(residual, pitch=2**27)
    with pytest.raises(ValueError, match="beyond 32 bits"):
        TENSOR.launches(problem, config, x, y, wide)
    # Its channels are more of each filter's row.
    assert inner_size(problem) == 8 + 20
    weight = normal((12, 28, 1, 1))
    row = TENSOR.prepare_filter(weight, problem, config)[5]
    half = weight[5, :, 0, 0].astype(np.float16)
    assert row.tolist() == [*half[:8], *half[8:], *[0] * 4]


def test_a_filter_has_a_row_a_filter_filled_up_with_zeros() -> None:
    problem = replace(conv_problem(1, 6, 10, window((4, 4), (1, 3)), 2), precision=Precision.FP16)
    weight = normal(problem.filter_shape)
    prepared = TENSOR.prepare_filter(weight, problem, TENSOR.configs(problem)[0])
    assert prepared.dtype == np.float16
    assert prepared.shape == (10, 16)  # 3 taps of 4, to 16 bytes
    assert prepared[8, 2 * 4 + 1] == weight[8, 1, 0, 2].astype(np.float16)
    assert np.count_nonzero(prepared) == weight.size


def test_a_tf32_filter_is_rounded_to_the_nearest() -> None:
    x = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf, 0], np.float32)
    assert to_tf32(x).tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1, np.inf, 0]
    assert np.isnan(to_tf32(np.array([np.nan], np.float32))).all()


@EVERY_PRECISION
def test_which_algorithms_run_a_precision(precision: Precision) -> None:
    names = {each.name for each in candidates(replace(_VGG, precision=precision))}
    assert ("direct" in names) == (precision.stored == np.float32)
    assert "tensor" in names
    assert TENSOR.supports(_VGG) == "strict float32"
    halves = replace(_VGG, precision=Precision.FP16)
    assert DIRECT.supports(halves) == "float16 tensors; it runs float32"


@EVERY_PRECISION
def test_the_largest_tile_is_bound_by_tensor_cores_and_small_ones_by_what_feeds_them(
    precision: Precision,
) -> None:
    problem = replace(_VGG, precision=precision)

    def clocks(tile: TensorTile) -> float:
        """Of a multiprocessor, for a chunk of one block."""
        (work,) = TENSOR.work(problem, TileConfig(tile))
        return work.instructions / 128 / ceil(inner_size(problem) / tile.bk)

    largest, *_, smallest = TENSOR.tiles(problem)
    products = 3 if precision is Precision.TF32X3 else 1
    # Its warps multiply 8 × 16 parts of 16 × 8 in 4 steps, 1.6 clocks each.
    assert 0.999 < clocks(largest) / (8 * 16 * 4 * 1.6 * products) < 1.1
    # One of 128 × 64 waits for shared memory: 4 steps of 8 warps load 4 times 4 wavefronts, and
    # 192 rows are copied; but where factors are split.
    if precision is not Precision.TF32X3:
        wide = TENSOR.tiles(problem)[1]
        assert clocks(wide) == pytest.approx(4 * 8 * 4 * 4 + 192)
    # Each of 4 warps has a scheduler, which issues about 177 instructions, where 8 are products.
    assert clocks(smallest) > 0.95 * (169 + 8 * products)
