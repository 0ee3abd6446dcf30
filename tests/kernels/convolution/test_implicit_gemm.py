"""Convolutions beyond the common cases: any layer, split sums, forms of filters, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cusim.device import CusimDevice
from kernels.convolution.algorithms import ALGORITHMS, ConvChoice, choices
from kernels.convolution.depthwise import DepthwiseConv
from kernels.convolution.direct import DirectConv
from kernels.convolution.implicit_gemm import TILES, Tile, inner_size
from kernels.convolution.split_sum import MAX_WORKSPACE_BYTES, MIN_CHUNKS, TileConfig
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.operations.linear import linear_launch, prepare_linear_weight
from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem
from kernels.problems.prologue import Prologue
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import DEPTHWISE, DIRECT, GEMM, conv_case
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import (
    DEPTHWISE_LAYERS,
    DIRECT_LAYERS,
    GEMM_LAYERS,
    PROLOGUE_LAYERS,
    Layer,
    dense,
    drawn_layer,
    filled,
    odd,
    within,
)
from tests.support.kernels.kernel_case import run
from tests.support.kernels.rig import of_drawn
from tests.support.kernels.windows import conv_problem, window, windows

_3x3 = window((6, 7), (3, 3), pads=(1, 1, 1, 1))
_RESNET_7 = conv_problem(1, 512, 512, window((7, 7), (3, 3), pads=(1, 1, 1, 1)))
_VGG_224 = conv_problem(8, 64, 64, window((224, 224), (3, 3), pads=(1, 1, 1, 1)))
_POINTWISE = conv_problem(1, 256, 64, window((56, 56), (1, 1)))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    c, k = draw(st.integers(1, 18)), draw(st.integers(1, 38))
    if draw(st.integers(0, 4)) == 0:
        groups, c, k = draw(st.integers(2, 18)), 1, draw(st.integers(1, 2))
    problem = conv_problem(draw(st.integers(1, 4)), c * groups, k * groups, draw(windows()), groups)
    return drawn_layer(draw, problem)


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw a layer and any configuration for it, split into more parts than the planner would
    use."""
    layer = draw(layers())
    choice = draw(st.sampled_from(choices(layer.problem)))
    if isinstance(choice.config, TileConfig):
        choice = choice._replace(config=replace(choice.config, split=draw(st.integers(1, 8))))
    return layer, choice


test_any_layer_is_its_reference_by_any_choice, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, chosen(), few=20, many=3000
)


@st.composite
def normalised(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw a pointwise layer with a prologue, and any configuration for it."""
    size = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=3)))
    c, k = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    problem = conv_problem(draw(st.integers(1, 3)), c, k, window(size, (1,) * len(size)))
    prologue = draw(st.sampled_from((Prologue(1e-3), Prologue(None, RELU))))
    places = st.sampled_from((dense, filled, within, odd))
    layer = Layer(
        "drawn",
        replace(problem, prologue=prologue),
        draw(places)(c),
        draw(places)(k),
        mean=draw(st.sampled_from((0.0, -3.0, 20.0))),
    )
    config = TileConfig(draw(st.sampled_from(TILES)), draw(st.integers(1, 8)))
    return layer, ConvChoice(GEMM, config)


test_any_layer_after_a_prologue_is_its_reference, test_very_many_after_a_prologue_are = of_drawn(
    conv_case, normalised(), few=20, many=1000
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", DIRECT_LAYERS + GEMM_LAYERS + PROLOGUE_LAYERS + DEPTHWISE_LAYERS, ids=str
)
def test_every_layer_is_its_reference_by_every_choice(device: CusimDevice, layer: Layer) -> None:
    for choice in choices(layer.problem):
        run(conv_case(layer, choice), device)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_split_sum_is_the_same_launch_after_launch_without_clearing_anything(
    device: CusimDevice, tile: Tile
) -> None:
    layer = Layer("split", conv_problem(1, 40, 36, _3x3), dense(40), dense(36))
    run(conv_case(layer, ConvChoice(DIRECT, TileConfig(tile, 5))), device, times=4)


def test_every_default_configuration_is_among_the_cases() -> None:
    wanted = {
        launch.instantiation
        for layer in DIRECT_LAYERS + GEMM_LAYERS + PROLOGUE_LAYERS + DEPTHWISE_LAYERS
        for choice in choices(layer.problem)
        for launch in choice.algorithm.launches(
            layer.problem, choice.config, ConvTensors(layer.x, layer.y)
        )
    }
    assert len(wanted) == 4 * len(TILES) + 9 + 14 + 6 + 26
    wanted |= {linear_launch(rows, dense(8), dense(8)).instantiation for rows in range(1, 9)}
    assert wanted <= set(INSTANTIATIONS)


@given(layers(), st.sampled_from((1, 8)))
def test_a_split_leaves_every_block_work_and_stays_within_the_papers_workspace(
    layer: Layer, n: int
) -> None:
    for problem in (layer.problem.with_batch(n), _RESNET_7.with_batch(n), _VGG_224, _POINTWISE):
        for algorithm in ALGORITHMS:
            if algorithm.supports(problem) is not None:
                continue
            configs = algorithm.configs(problem)
            assert len(set(configs)) == len(configs) > 0
            for config in configs:
                workspace = algorithm.workspace(problem, config)
                assert workspace.get("workspace", 0) <= MAX_WORKSPACE_BYTES
                if isinstance(config, TileConfig) and config.split > 1:
                    chunks = -(-inner_size(problem) // config.tile.bk)
                    assert chunks // config.split >= MIN_CHUNKS


@pytest.mark.parametrize(
    ("problem", "filters"),
    [(_RESNET_7, 4), (_POINTWISE, 1), (DEPTHWISE_LAYERS[0].problem, 2)],
    ids=str,
)
def test_filters_of_one_form_are_one_whatever_n_and_configuration(
    problem: ConvProblem, filters: int
) -> None:
    small = replace(problem, c=min(problem.c, 12), k=min(problem.k, 12))
    weight = normal(small.filter_shape)
    by_form: dict[str, set[bytes]] = {}
    for n in (1, 8):
        for algorithm, config, _ in choices(small.with_batch(n)):
            prepared = algorithm.prepare_filter(weight, small.with_batch(n), config)
            assert prepared.dtype == np.float32
            assert prepared.flags.c_contiguous
            form = algorithm.filter_form(small.with_batch(n), config)
            by_form.setdefault(form, set()).add(prepared.tobytes())
    assert [len(contents) for contents in by_form.values()] == [1] * filters


def test_a_filter_has_its_channels_last_and_filled_up_with_zeros() -> None:
    problem = conv_problem(1, 6, 10, window((4, 4), (2, 3)), 2)
    weight = normal(problem.filter_shape)
    prepared = DIRECT.prepare_filter(weight, problem, TileConfig(TILES[0]))
    assert prepared.shape == (2, 6, 4, 8)
    assert prepared[1, 4, 2, 3] == weight[8, 2, 1, 1]  # group 1, tap (1, 1), channel 2, filter 3
    assert np.count_nonzero(prepared) == weight.size
    assert not prepared[:, :, 3:].any()
    assert not prepared[:, :, :, 5:].any()


def test_a_weights_rows_are_filled_up_with_zeros() -> None:
    weight = normal((3, 6)).T
    prepared = prepare_linear_weight(weight)
    assert prepared.flags.c_contiguous
    assert np.array_equal(prepared, np.pad(weight, ((0, 0), (0, 1))))


@pytest.mark.parametrize(
    ("x", "y", "residual", "reason"),
    [
        (dense(8), dense(12), None, "12 channels, but x has 8"),
        (dense(12), dense(8), None, "12 filters, but y has 8"),
        (dense(12), dense(12), dense(8), "the residual must have 12 channels, got 8"),
    ],
)
@pytest.mark.parametrize("algorithm", [DIRECT, DEPTHWISE], ids=lambda each: each.name)
def test_pixels_of_other_channels_are_refused(
    algorithm: DirectConv | DepthwiseConv,
    x: Pixels,
    y: Pixels,
    residual: Pixels | None,
    reason: str,
) -> None:
    problem = conv_problem(1, 12, 12, _3x3, 12)
    (choice, *_) = (each for each in choices(problem) if each.algorithm.name == algorithm.name)
    with pytest.raises(ValueError, match=reason):
        choice.algorithm.launches(problem, choice.config, ConvTensors(x, y, residual))


@pytest.mark.parametrize(
    ("problem", "x", "y"),
    [
        (_VGG_224, Pixels(64, 8192), dense(64)),
        (_VGG_224, dense(64), Pixels(64, 8192)),
        (replace(_VGG_224, c=2**16, k=2**13), Pixels(2**16, 2**16), Pixels(2**13, 2**13)),
        (replace(_VGG_224, groups=64), Pixels(64, 8192), dense(64)),
        (replace(_VGG_224, groups=64), dense(64), Pixels(64, 8192)),
    ],
    ids=["x", "y", "filter", "depthwise x", "depthwise y"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels
) -> None:
    choice = choices(problem)[-1]
    with pytest.raises(ValueError, match="beyond 32 bits"):
        choice.algorithm.launches(problem, choice.config, ConvTensors(x, y))


def test_a_filter_of_another_shape_is_refused() -> None:
    for algorithm, config, _ in choices(DEPTHWISE_LAYERS[0].problem):
        with pytest.raises(ValueError, match="the filter must have shape"):
            algorithm.prepare_filter(normal((8, 1, 3, 4)), DEPTHWISE_LAYERS[0].problem, config)
