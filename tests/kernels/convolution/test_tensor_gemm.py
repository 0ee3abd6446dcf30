"""Convolutions on tensor cores beyond the common cases: any layer, accuracy, filters, registers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.kernels import accuracy
from benchmarks.kernels.accuracy import Error, error_of
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, candidates
from kernels.convolution.implicit_gemm import TILES, inner_size
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TENSOR_TILES, to_tf32
from kernels.device.gpus import H200
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import Projection
from kernels.problems.precision import FLOAT, HALF, Precision
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import DIRECT, conv_case
from tests.support.cases.tensor_gemm import PRECISIONS, TENSOR, WARPGROUPS, at_precision
from tests.support.kernels import reference
from tests.support.kernels.arrays import Array, normal
from tests.support.kernels.conv_layers import (
    DIRECT_LAYERS,
    GEMM_LAYERS,
    Layer,
    dense,
    filled,
    odd,
    within,
)
from tests.support.kernels.rig import of_drawn
from tests.support.kernels.windows import conv_problem, window

EVERY_PRECISION = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda each: each.value)

_VGG = conv_problem(1, 128, 256, window((56, 56), (3, 3), pads=(1, 1, 1, 1)))
_3x3 = window((6, 7), (3, 3), pads=(1, 1, 1, 1))


@st.composite
def projecting_layers(draw: st.DrawFn) -> Layer:
    """Draw a sum of two 1×1 convolutions, in fp16, because fp32 has no such projections."""
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
    """Draw a layer at a precision with any tile, split into more parts than the planner would
    use."""
    layer = draw(layers() | projecting_layers())
    layer = at_precision(layer, draw(st.sampled_from(PRECISIONS)))
    tile = draw(st.sampled_from(TENSOR.blocks_of(layer.problem)))
    return layer, ConvChoice(TENSOR, TileConfig(tile, draw(st.integers(1, 8))))


test_any_layer_is_its_reference_by_any_tile, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, chosen(), few=20, many=3000
)


SUMS_OF = {"positive": (0.0, 1.0), "of either sign": (-1.0, 1.0)}
"""The ranges of the factors. Truncated sums have the largest errors if all factors are positive."""


@pytest.mark.parametrize("channels", [64, 512])
@pytest.mark.parametrize("between", SUMS_OF.values(), ids=SUMS_OF)
def test_three_tf32_products_err_as_float32_does_though_tensor_cores_truncate(
    device: CusimDevice, channels: int, between: tuple[float, float]
) -> None:
    """Sums of up to 4608 products with the chosen kernel, the best fp32 kernel, and a single chain.

    A single chain in float32 (SGEMM) has the error that Ootomo & Yokota published for it. A bias
    would accumulate from layer to layer.
    """
    problem = conv_problem(1, channels, 32, _3x3)
    rng = np.random.default_rng(3)
    shapes = (1, channels, 6, 7), problem.filter_shape
    x, weight = (rng.uniform(*between, shape).astype(np.float32) for shape in shapes)
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), problem)

    def errors(choice: ConvChoice, precision: Precision) -> Error:
        at = replace(problem, precision=precision)
        return error_of(accuracy.convolve(device, at, choice, x, weight), truth)

    def chosen(precision: Precision) -> dict[str, ConvChoice]:
        return accuracy.variants(replace(problem, precision=precision), H200)

    best = min(errors(each, Precision.FP32).usual for each in chosen(Precision.FP32).values())
    error = errors(chosen(Precision.TF32X3)["tensor"], Precision.TF32X3)
    assert error.usual < 2 * best
    assert abs(error.bias) < 0.6
    whole = TileConfig(TENSOR.blocks_of(replace(problem, precision=Precision.TF32X3))[0])
    error = errors(ConvChoice(TENSOR, whole), Precision.TF32X3)
    assert error.usual < errors(ConvChoice(DIRECT, TileConfig(TILES[0])), Precision.FP32).usual
    assert abs(error.bias) < 0.6


def test_three_tf32_products_are_infinite_and_nan_where_float32_is(device: CusimDevice) -> None:
    """This also holds if a weight is a TF32 number, so that its remainder is 0 or has the other
    sign."""
    problem = conv_problem(1, 8, 12, window((3, 5), (1, 1)))
    x = normal((1, 8, 3, 5))
    largest = float(np.finfo(np.float32).max)
    extremes = np.array([np.inf, -np.inf, np.nan, largest, -largest], np.float32)
    x[0, 2, 0] = x[0, 5, 1] = extremes
    x[0, 1, 1, 1] = np.inf  # infinity - infinity or the like
    weight = 0.1 * normal(problem.filter_shape, 2)
    weight[:4] = weight[:4].astype(np.float16)
    weight[4, 5] = weight[5, 2] = 0

    def convolved(choice: ConvChoice, precision: Precision) -> Array:
        at = replace(problem, precision=precision)
        return accuracy.convolve(device, at, choice, x, weight)

    expected = convolved(ConvChoice(DIRECT, TileConfig(TILES[4])), Precision.FP32)
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert (np.abs(expected) > 1e37).any()
    at = replace(problem, precision=Precision.TF32X3)
    every = [
        ConvChoice(by, TileConfig(tile)) for by in (TENSOR, WARPGROUPS) for tile in by.blocks_of(at)
    ]
    for choice in every:
        y = convolved(choice, Precision.TF32X3)
        np.testing.assert_allclose(y, expected, rtol=1e-3)  # of the largest float 11 bits are left


@EVERY_PRECISION
def test_every_configuration_is_among_the_cases(precision: Precision) -> None:
    wanted = {
        launch.instantiation
        for layer in [at_precision(each, precision) for each in DIRECT_LAYERS + GEMM_LAYERS]
        for config in TENSOR.configs(layer.problem)
        for launch in TENSOR.launches(layer.problem, config, ConvTensors(layer.x, layer.y))
    }
    units = 2 if precision is Precision.FP16 else 1
    assert len(wanted) == units * len(TENSOR_TILES)
    assert wanted <= set(INSTANTIATIONS)


def test_a_projection_without_what_it_projects_is_refused() -> None:
    plain = replace(conv_problem(1, 8, 12, window((4, 4), (1, 1))), precision=Precision.FP16)
    problem = replace(plain, projection=Projection(20, (8, 8), (2, 2)))
    config = TENSOR.configs(problem)[0]
    x, y, residual = (Pixels(each, each, stored=HALF) for each in (8, 12, 20))
    TENSOR.launches(problem, config, ConvTensors(x, y, residual))
    with pytest.raises(ValueError, match="needs a residual to project"):
        TENSOR.launches(problem, config, ConvTensors(x, y))
    with pytest.raises(ValueError, match="the residual must have 20 channels, got 12"):
        TENSOR.launches(problem, config, ConvTensors(x, y, y))
    wide = replace(residual, pitch=2**27)
    with pytest.raises(ValueError, match="beyond 32 bits"):
        TENSOR.launches(problem, config, ConvTensors(x, y, wide))
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
    assert ("direct" in names) == (precision.stored == FLOAT)
    assert "tensor" in names
    assert TENSOR.supports(_VGG) == "strict float32"
    halves = replace(_VGG, precision=Precision.FP16)
    assert DIRECT.supports(halves) == "float16 tensors; supported: float32"
