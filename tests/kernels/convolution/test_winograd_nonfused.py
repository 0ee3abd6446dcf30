"""Non-fused Winograd beyond the common cases: any layer and chunk, and bounds."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.kernels import accuracy, suites
from cusim.device import CusimDevice
from kernels.convolution.algorithms import Algorithm, ConvChoice
from kernels.convolution.implicit_gemm import TILES
from kernels.convolution.split_sum import MAX_WORKSPACE_BYTES, TileConfig
from kernels.convolution.winograd_nonfused import (
    CACHED_BYTES,
    MAX_BYTES,
    NonfusedConfig,
    NonfusedWinogradConv,
)
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.winograd.matrices import Points
from tests.support.cases.conv import DIRECT, conv_case, multiplied
from tests.support.cases.tensor_gemm import TENSOR, at_precision
from tests.support.cases.winograd_nonfused import F2, F2_3D, F4, LAYERS, LAYERS_3D
from tests.support.kernels import reference, resources
from tests.support.kernels.arrays import FLOATING, Array, normal
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer
from tests.support.kernels.kernel_case import run
from tests.support.kernels.rig import of_drawn
from tests.support.kernels.windows import conv_problem, window

ALGORITHMS = (F2, F4, F2_3D)


def square(c: int, k: int, *size: int) -> ConvProblem:
    """Return a layer as in most networks: a window of 3 along every axis, padded by 1."""
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
    """Draw any layer with a window of 3 that has a kernel, in any chunks and split sums."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    axes = algorithm.axes
    pads = tuple(draw(st.integers(0, 4)) for _ in range(2 * axes))
    least = (max(1, 3 - begin - end) for begin, end in zip(pads, pads[axes:], strict=False))
    size = tuple(fewest + draw(st.integers(0, 5)) for fewest in least)
    c, k = draw(st.integers(1, 18)), draw(st.integers(1, 38))
    problem = conv_problem(draw(st.integers(1, 4)), c, k, window(size, (3,) * axes, pads=pads))
    layer = drawn_layer(draw, problem)
    layer = at_precision(layer, draw(st.sampled_from(FLOATING)))
    points = draw(st.sampled_from([Points.INTEGER, Points.MIXED][: algorithm.m // 2]))
    if layer.problem.precision is Precision.FP16:
        points = algorithm.configs(layer.problem)[0].points
    products = replace(problem, precision=algorithm.arithmetic(layer.problem))
    by: tuple[Any, ...] = TILES
    if products.precision is not Precision.FP32:
        by = TENSOR.blocks_of(products)
    gemm = TileConfig(draw(st.sampled_from(by)), draw(st.integers(1, 4)))
    chunk = draw(st.integers(1, tiles(algorithm, problem)))
    return layer, ConvChoice(algorithm, NonfusedConfig(points, gemm, chunk))


def tiles(algorithm: NonfusedWinogradConv, problem: ConvProblem) -> int:
    """Return the number of tiles of all images."""
    return problem.n * prod(-(-p // algorithm.m) for p in problem.window.output)


test_any_layer_is_its_reference_in_any_chunks, test_very_many_layers_are_their_reference = of_drawn(
    conv_case,
    drawn_cases(),
    few=15,
    many=500,  # most have kernels of their own to compile
)


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
    """Compare fewer elements than the paper, so the largest error is smaller, but with sums of the
    same length.

    In the paper, all algorithms have the same error, because data and filters are float16 and
    everything else is float32. This also holds here for F(4x4,3x3), except for y, which is stored
    as float16 and determines the largest error. F(2x2,3x3) also rounds the transformed data and
    filter to 11 bits, so its error is larger.
    """
    half = replace(square(layer.problem.c, 32, 12, 12), precision=Precision.FP16)
    x, weight, truth = _uniform(half)
    direct, in_2x2, in_4x4 = (
        np.abs(accuracy.convolve(device, half, choice, x, weight) - truth)
        for algorithm in (TENSOR, F2, F4)
        for choice in [ConvChoice(algorithm, algorithm.configs(half)[0])]
    )
    for error in (direct, in_4x4):
        assert 0.5 < error.max() / accuracy.PAPER_HALF[layer.name] < 2
    assert in_4x4.max() == pytest.approx(direct.max(), rel=0.1)
    assert in_4x4.mean() < direct.mean()  # its filter stays float32
    most = accuracy.AT_MOST["winograd F(2x2,3x3)"]
    assert direct.max() < in_2x2.max() < most * direct.max()


@pytest.mark.parametrize("layer", accuracy.LAYERS, ids=lambda each: each.name)
@pytest.mark.parametrize("algorithm", [F2, F4], ids=lambda each: each.name)
def test_by_three_tf32_products_errors_are_as_promised_of_floats(
    device: CusimDevice, algorithm: NonfusedWinogradConv, layer: suites.Layer
) -> None:
    problem = square(layer.problem.c, 32, 12, 12)
    x, weight, truth = _uniform(problem)

    def largest_error(of: Algorithm[Any], precision: Precision) -> float:
        at = replace(problem, precision=precision)
        choice = ConvChoice(of, of.configs(at)[0])
        return float(np.abs(accuracy.convolve(device, at, choice, x, weight) - truth).max())

    most = accuracy.AT_MOST[algorithm.name.removesuffix(" non-fused")]
    in_floats = largest_error(DIRECT, Precision.FP32)
    assert largest_error(algorithm, Precision.TF32X3) < most * in_floats


def _uniform(problem: ConvProblem) -> tuple[Array, Array, Array]:
    """Return data and a filter with numbers in [-1, 1], and their convolution in float64."""
    rng = np.random.default_rng(1)
    shapes = (1, problem.c, *problem.window.input), problem.filter_shape
    x, weight = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    exact = replace(problem, precision=Precision.FP32)
    return x, weight, reference.conv(x.astype(np.float64), weight.astype(np.float64), exact)


@pytest.mark.parametrize(
    ("algorithm", "precision", "products"),
    [
        (F2, Precision.FP32, Precision.FP32),
        (F4, Precision.FP32, Precision.FP32),
        (F2, Precision.FP16, Precision.TF32),
        (F2, Precision.TF32, Precision.TF32),
        (F2, Precision.TF32X3, Precision.TF32X3),
        *(
            (algorithm, precision, Precision.TF32X3)
            for algorithm in (F4, F2_3D)
            for precision in (Precision.FP16, Precision.TF32, Precision.TF32X3)
        ),
    ],
    ids=str,
)
def test_products_have_11_bits_only_where_that_at_most_doubles_errors(
    algorithm: NonfusedWinogradConv, precision: Precision, products: Precision
) -> None:
    problem = replace(square(20, 10, *(5, 4, 6)[: algorithm.axes]), precision=precision)
    assert algorithm.supports(problem) is None
    assert algorithm.arithmetic(problem) is products
    config = algorithm.configs(problem)[0]
    x, y = (Pixels(channels, channels, stored=precision.stored) for channels in (20, 10))
    data, gemm, inverse = algorithm.launches(problem, config, ConvTensors(x, y))
    tensor = products is not Precision.FP32
    assert gemm.instantiation.kernel == ("conv_tensor" if tensor else "conv_direct")
    if tensor:
        assert dict(gemm.instantiation.arguments)["precision"] == f"Precision::{products.name}"
    outside = precision.stored.element
    assert data.elements == {"x": outside, "data": "float"}
    assert inverse.elements == {"products": "float", "y": outside}
    nbytes = algorithm.workspace(problem, config)
    assert nbytes["data"] == 20 / 12 * nbytes["products"]  # filters are filled up to vectors
    tiles_of_all = tiles(algorithm, problem) * (algorithm.m + 2) ** algorithm.axes
    assert nbytes["data"] == tiles_of_all * 20 * 4


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
        launches = algorithm.launches(problem, config, ConvTensors(x, y, bias=True))
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
    table = resources.read()
    layers = (F2, LAYERS[0]), (F4, LAYERS[0]), (F2_3D, LAYERS_3D[0])
    every = [(each, at_precision(layer, at)) for each, layer in layers for at in FLOATING]
    for algorithm, layer in every:
        for config in algorithm.configs(layer.problem):
            works = algorithm.work(layer.problem, config)
            launches = algorithm.launches(layer.problem, config, ConvTensors(layer.x, layer.y))
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
        F4.launches(problem, config, ConvTensors(x, y))


def test_pixels_of_other_channels_and_another_filter_are_refused() -> None:
    problem = square(12, 8, 5, 5)
    config = F4.configs(problem)[0]
    with pytest.raises(ValueError, match="12 channels, but x has 8"):
        F4.launches(problem, config, ConvTensors(dense(8), dense(8)))
    with pytest.raises(ValueError, match="the filter must have shape"):
        F4.prepare_filter(normal((8, 11, 3, 3)), problem, config)


def test_on_tensor_cores_a_filter_has_a_row_for_each_position_and_filter() -> None:
    weight = normal((10, 20, 3, 3))
    floats = square(20, 10, 5, 5)
    u = F2.prepare_filter(weight, floats, F2.configs(floats)[0])
    forms = {F2.filter_form(floats, F2.configs(floats)[0])}
    for precision in (Precision.FP16, Precision.TF32, Precision.TF32X3):
        problem = replace(floats, precision=precision)
        config = F2.configs(problem)[0]
        prepared = F2.prepare_filter(weight, problem, config)
        assert prepared.dtype == np.float32
        assert prepared.shape == (16 * 12, 20)
        expected = multiplied(u[5, :, 7], F2.arithmetic(problem))
        assert np.array_equal(prepared[5 * 12 + 7], expected)
        assert not prepared[5 * 12 + 10 : 6 * 12].any()
        forms.add(F2.filter_form(problem, config))
    assert len(forms) == 3  # fp16 multiplies as tf32 does
    half, exact = (replace(floats, precision=each) for each in (Precision.FP16, Precision.TF32X3))
    config = F4.configs(half)[0]
    assert F4.filter_form(half, config) == F4.filter_form(exact, config)
    one, other = (F4.prepare_filter(weight, each, config) for each in (half, exact))
    assert np.array_equal(one, other)


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
