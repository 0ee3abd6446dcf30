"""Non-fused Winograd beyond the common cases: any layer and chunk, and what is bounded."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.kernels import accuracy, suites
from kernels import reference
from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.implicit_gemm import MAX_WORKSPACE_BYTES, TILES, TileConfig
from kernels.convolution.tensor_gemm import TENSOR_TILES
from kernels.convolution.winograd_nonfused import (
    CACHED_BYTES,
    MAX_BYTES,
    NonfusedConfig,
    NonfusedWinogradConv,
)
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.winograd import reference as oracle
from kernels.winograd.filter import as_array, nested
from kernels.winograd.matrices import Points, winograd_matrices
from tests.cusim.device import CusimDevice, Order
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import TENSOR, at_precision
from tests.support.cases.winograd_nonfused import F2, F2_3D, F4, LAYERS, LAYERS_3D
from tests.support.kernels import resources
from tests.support.kernels.arrays import Array, normal
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer
from tests.support.kernels.kernel_case import run
from tests.support.kernels.windows import ON_A_DEVICE, conv_problem, window

ALGORITHMS = (F2, F4, F2_3D)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(order=Order.RANDOM)
    yield device
    device.close()


def square(c: int, k: int, *size: int) -> ConvProblem:
    """A layer of the usual networks: 3 along every axis, padded by 1."""
    axes = len(size)
    return conv_problem(1, c, k, window(size, (3,) * axes, pads=(1,) * 2 * axes))


_VGG_8 = square(64, 64, 224, 224).with_batch(8)

NETWORKS = (
    *(
        (F2, layer.with_batch(n))
        for n in (1, 8)
        for layer in (square(64, 64, 224, 224), square(512, 512, 7, 7))
    ),
    *(
        (F4, layer.with_batch(n))
        for n in (1, 8)
        for layer in (
            square(3, 64, 224, 224),
            square(64, 64, 224, 224),
            square(256, 256, 56, 56),
            square(512, 512, 14, 14),
            square(512, 512, 7, 7),
        )
    ),
    *(
        (F2_3D, layer.with_batch(n))
        for n in (1, 8)
        for layer in (square(64, 128, 16, 56, 56), square(512, 512, 2, 7, 7))
    ),
)
EVERY_LAYER = pytest.mark.parametrize(("algorithm", "problem"), NETWORKS, ids=str)


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Any layer that has a kernel of 3, in any chunks and split sums, chosen or not."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    axes = algorithm.axes
    pads = tuple(draw(st.integers(0, 4)) for _ in range(2 * axes))
    least = (max(1, 3 - begin - end) for begin, end in zip(pads, pads[axes:], strict=False))
    size = tuple(fewest + draw(st.integers(0, 5)) for fewest in least)
    c, k = draw(st.integers(1, 18)), draw(st.integers(1, 38))
    problem = conv_problem(draw(st.integers(1, 4)), c, k, window(size, (3,) * axes, pads=pads))
    layer = drawn_layer(draw, problem)
    points = draw(st.sampled_from([Points.INTEGER, Points.MIXED][: algorithm.m // 2]))
    products: tuple[Any, ...] = TILES
    if algorithm == F2 and draw(st.booleans()):
        layer = at_precision(layer, Precision.FP16)
        products = TENSOR_TILES
    gemm = TileConfig(draw(st.sampled_from(products)), draw(st.integers(1, 4)))
    chunk = draw(st.integers(1, tiles(algorithm, problem)))
    return layer, ConvChoice(algorithm, NonfusedConfig(points, gemm, chunk))


def tiles(algorithm: NonfusedWinogradConv, problem: ConvProblem) -> int:
    """Of all images."""
    return problem.n * prod(-(-p // algorithm.m) for p in problem.window.output)


@settings(ON_A_DEVICE, max_examples=40)
@given(drawn_cases())
def test_any_layer_is_its_reference_in_any_chunks(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


@pytest.mark.slow
@settings(ON_A_DEVICE, max_examples=500)
@given(drawn_cases())
def test_very_many_layers_are_their_reference(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS + LAYERS_3D, ids=str)
def test_every_layer_is_its_reference_by_every_configuration(
    device: CusimDevice, layer: Layer
) -> None:
    for algorithm in ALGORITHMS:
        if algorithm.supports(layer.problem) is None:
            for config in algorithm.configs(layer.problem):
                run(conv_case(layer, ConvChoice(algorithm, config)), device)


@pytest.mark.parametrize("layer", accuracy.LAYERS, ids=lambda each: each.name)
def test_errors_in_fp16_are_those_of_the_papers_table_4(
    device: CusimDevice, layer: suites.Layer
) -> None:
    """Of fewer elements, whose largest error is smaller, but of sums as long."""
    half = replace(square(layer.problem.c, 32, 12, 12), precision=Precision.FP16)
    x, weight, truth = _uniform(half)

    def largest_error(choice: ConvChoice) -> float:
        return float(np.abs(accuracy.convolve(device, half, choice, x, weight) - truth).max())

    direct = largest_error(ConvChoice(TENSOR, TENSOR.configs(half)[0]))
    # Here y is stored as halves too, of which the paper does not say so.
    assert 0.5 < direct / accuracy.PAPER_HALF[layer.name] < 2
    winograd = largest_error(ConvChoice(F2, F2.configs(half)[0]))
    assert direct < winograd < accuracy.AT_MOST["winograd F(2x2,3x3)"] * direct


def _uniform(problem: ConvProblem) -> tuple[Array, Array, Array]:
    """Data and a filter from [-1, 1], and their convolution in float64."""
    rng = np.random.default_rng(1)
    shapes = (1, problem.c, *problem.window.input), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    exact = replace(problem, precision=Precision.FP32)
    return x, weight, reference.conv(x.astype(np.float64), weight.astype(np.float64), exact)


def test_transforms_of_4x4_lose_too_much_in_fp16() -> None:
    """Why F(4x4,3x3) is refused: the same stages in NumPy, rounded where tensor cores would."""
    problem = square(64, 32, 12, 12)
    x, weight, truth = _uniform(problem)

    def rounded(array: Array) -> Array:
        return array.astype(np.float16).astype(np.float64)

    x, weight = rounded(x), rounded(weight)

    def largest_error(y: Array) -> float:
        return float(np.abs(rounded(y) - truth).max())

    direct, errors = largest_error(reference.conv(x, weight, problem)), {}
    for algorithm in (F2, F4):
        points = algorithm.configs(problem)[0].points
        matrices = winograd_matrices(algorithm.m, 3, points)
        g, bt, at = map(as_array, (matrices.g, matrices.bt, matrices.at))
        u, v = nested(g, weight, 2), nested(bt, oracle.tiles(x, problem, matrices), 2)
        m = rounded(oracle.products(rounded(u), rounded(v)))
        errors[algorithm.m] = largest_error(oracle.untiled(nested(at, m, 2), problem))
    assert errors[2] < 2 * direct
    assert errors[4] > 5 * direct
    half = replace(problem, precision=Precision.FP16)
    assert F2.supports(half) is None
    assert F4.supports(half) == "float16 tensors; rounding errors would be 6.9 times larger"
    in_3d = replace(square(8, 8, 4, 5, 6), precision=Precision.FP16)
    assert F2_3D.supports(in_3d) == "float16 tensors; rounding errors would be 2.2 times larger"


def test_chunks_change_no_bit() -> None:
    layer = replace(LAYERS[1], problem=LAYERS[1].problem.with_batch(3))
    cusim = CusimDevice()
    for algorithm in (F2, F4):
        results = {
            run(conv_case(layer, ConvChoice(algorithm, config)), cusim).tobytes()
            for chunk in (1, 4, 7, tiles(algorithm, layer.problem))
            for config in [NonfusedConfig(Points.INTEGER, TileConfig(TILES[4], 2), chunk)]
        }
        assert len(results) == 1
    cusim.close()


@EVERY_LAYER
def test_what_lies_between_the_stages_is_bounded(
    algorithm: NonfusedWinogradConv, problem: ConvProblem
) -> None:
    total = tiles(algorithm, problem)
    chunks = sorted({config.chunk for config in algorithm.configs(problem)}, reverse=True)
    bounds = (MAX_BYTES, CACHED_BYTES)[: len(chunks)]
    for chunk, bound in zip(chunks, bounds, strict=True):
        config = next(each for each in algorithm.configs(problem) if each.chunk == chunk)
        workspace = dict(algorithm.workspace(problem, config))
        assert workspace.pop("data") + workspace.pop("products") <= bound
        assert sum(workspace.values()) <= MAX_WORKSPACE_BYTES
        assert chunk == total or (chunk < total and chunk % 64 == 0)
        assert chunk < total / -(-total // chunk) + 64, "chunks are about equal"
    # Fewer at a time are only tried where they fit the cache and more do not.
    whole = algorithm.workspace(problem, replace(algorithm.configs(problem)[0], chunk=total))
    assert (len(chunks) == 1) == (whole["data"] + whole["products"] <= CACHED_BYTES)


@EVERY_LAYER
def test_a_layer_has_few_configurations_and_each_fills_its_tiles_and_the_machine(
    algorithm: NonfusedWinogradConv, problem: ConvProblem
) -> None:
    configs = algorithm.configs(problem)
    assert 1 <= len(set(configs)) == len(configs) <= 18
    for config in configs:
        assert config.gemm.tile.bm == 16 or config.gemm.tile.bm < 2 * config.chunk
        _, products, _ = algorithm.work(problem, config)[:3]
        assert config.gemm.split in (1, 2, 4, 8)
        assert config.gemm.split == 1 or products.blocks <= 512
    points = {config.points for config in configs}
    assert points == {Points.MIXED if algorithm.m == 4 else Points.INTEGER}


@EVERY_LAYER
def test_the_launches_of_all_chunks_cover_every_tile_once(
    algorithm: NonfusedWinogradConv, problem: ConvProblem
) -> None:
    for config in algorithm.configs(problem)[:: len(TILES)]:
        x, y = dense(problem.c), dense(problem.k)
        launches = algorithm.launches(problem, config, x, y, bias=True)
        works = algorithm.work(problem, config)
        assert len(launches) == len(works) == 3 * -(-tiles(algorithm, problem) // config.chunk)
        done = 0
        for data, products, inverse in zip(*[iter(launches)] * 3, strict=True):
            assert data.operands == ("x", "data")
            assert products.operands[:3] == ("data", "weight", "products")
            assert inverse.operands == ("products", "bias", "y")
            for launch in (data, inverse):
                place = next(each for each in launch.arguments if isinstance(each, bytes))
                first, count, *_ = np.frombuffer(place, np.int32)
                assert first == done
            done += count
        assert done == tiles(algorithm, problem)
        for launch, work in zip(launches, works, strict=True):
            assert prod(launch.grid) == work.blocks
            assert prod(launch.block) == work.threads


def test_the_cost_model_is_told_what_the_transforms_take() -> None:
    _, table = resources.read()
    half = at_precision(LAYERS[0], Precision.FP16)
    layers = (F2, LAYERS[0]), (F2, half), (F4, LAYERS[0]), (F2_3D, LAYERS_3D[0])
    for algorithm, layer in layers:
        for config in algorithm.configs(layer.problem):
            works = algorithm.work(layer.problem, config)
            launches = algorithm.launches(layer.problem, config, layer.x, layer.y)
            for work, launch in ((works[0], launches[0]), (works[2], launches[2])):
                instantiation = launch.instantiation
                cell = table[f"{instantiation.source} {instantiation.expression}"]["90a"].split()
                shared = int(cell[cell.index("shared") + 1]) if "shared" in cell else 0
                assert work.shared_bytes == shared


@pytest.mark.parametrize(
    ("problem", "x", "y", "chunk"),
    [
        (_VGG_8, Pixels(64, 8192), dense(64), 1000),
        (_VGG_8, dense(64), Pixels(64, 8192), 1000),
        (_VGG_8, dense(64), dense(64), 10**6),
        (
            conv_problem(1, 4, 1, window((2, 2), (3, 3), pads=(20_000,) * 4)),
            dense(4),
            dense(1),
            10**6,
        ),
    ],
    ids=["x", "y", "chunk", "padding"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels, chunk: int
) -> None:
    config = NonfusedConfig(Points.MIXED, TileConfig(TILES[0]), chunk)
    with pytest.raises(ValueError, match="beyond 32 bits"):
        F4.launches(problem, config, x, y)


def test_pixels_of_other_channels_and_another_filter_are_refused() -> None:
    problem = square(12, 8, 5, 5)
    config = F4.configs(problem)[0]
    with pytest.raises(ValueError, match="12 channels, but x has 8"):
        F4.launches(problem, config, dense(8), dense(8))
    with pytest.raises(ValueError, match="the filter is"):
        F4.prepare_filter(normal((8, 11, 3, 3)), problem, config)


def test_in_fp16_products_run_on_tensor_cores() -> None:
    problem = replace(square(20, 10, 5, 5), precision=Precision.FP16)
    config = F2.configs(problem)[0]
    x, y = (Pixels(channels, channels, stored=HALF) for channels in (20, 10))
    data, products, inverse = F2.launches(problem, config, x, y)
    assert products.instantiation.kernel == "conv_tensor"
    assert data.elements == {"x": "Half", "data": "Half"}
    assert inverse.elements == {"products": "Half", "y": "Half"}
    # A row of U for each filter and position, its channels filled up to 16 bytes.
    weight = normal(problem.filter_shape)
    prepared = F2.prepare_filter(weight, problem, config)
    assert prepared.dtype == HALF
    assert prepared.shape == (16 * 12, 24)
    floats = replace(problem, precision=Precision.FP32)
    u = F2.prepare_filter(weight, floats, F2.configs(floats)[0])
    assert prepared[5 * 12 + 7, 19] == u[5, 19, 7].astype(np.float16)
    assert F2.filter_form(problem, config) != F2.filter_form(floats, F2.configs(floats)[0])
    # Half the bytes.
    assert F2.workspace(problem, config) == {"data": 9 * 16 * 24 * 2, "products": 9 * 16 * 12 * 2}


def test_filters_have_a_form_for_each_set_of_points() -> None:
    problem = square(6, 10, 5, 5)
    config = F4.configs(problem)[0]
    forms = {F4.filter_form(problem, replace(config, points=points)) for points in Points}
    assert len(forms) == 2
    prepared = F4.prepare_filter(normal((10, 6, 3, 3)), problem, F4.configs(problem)[0])
    assert prepared.shape == (36, 8, 12)
    assert prepared.dtype == np.float32
    assert not prepared[:, 6:].any()
    assert not prepared[:, :, 10:].any()
