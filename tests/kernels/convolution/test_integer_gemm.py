"""Convolutions of bytes beyond the common cases: any layer, every split, what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cusim.device import CusimDevice, Order
from kernels import reference
from kernels.convolution.algorithms import candidates
from kernels.convolution.integer import requantization
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TensorTile
from kernels.device.device import FaultError
from kernels.device.gpus import H200
from kernels.layout.pixels import Pixels
from kernels.operations.quantise import clamped
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.precision import BYTE, Precision, Storage
from kernels.tuning.heuristic import heuristic
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.integer import (
    INTEGER,
    INTEGER_DEPTHWISE,
    INTEGER_PATCH,
    in_bytes,
    integer_case,
)
from tests.support.kernels.conv_layers import (
    DEPTHWISE_LAYERS,
    DIRECT_LAYERS,
    GEMM_LAYERS,
    SPLIT_LAYER,
    Layer,
)
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.windows import ON_A_DEVICE, conv_problem, window

_1x1 = replace(conv_problem(1, 8, 12, window((4, 4), (1, 1))), precision=Precision.INT8)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(order=Order.RANDOM)
    yield device
    device.close()


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, TileConfig[TensorTile], int]:
    """A layer of bytes, by any tile, split further than it would be."""
    layer = in_bytes(draw(layers()), draw(st.integers(0, 7)))
    tile = draw(st.sampled_from(INTEGER.blocks_of(layer.problem)))
    return layer, TileConfig(tile, draw(st.integers(1, 8))), draw(st.integers(0, 99))


@settings(ON_A_DEVICE, max_examples=20)
@given(chosen())
def test_any_layer_is_its_reference_to_the_bit_by_any_tile(
    device: CusimDevice, drawn: tuple[Layer, TileConfig[TensorTile], int]
) -> None:
    run(integer_case(*drawn), device)


@pytest.mark.slow
@settings(ON_A_DEVICE, max_examples=3000)
@given(chosen())
def test_very_many_layers_are_their_reference_to_the_bit(
    device: CusimDevice, drawn: tuple[Layer, TileConfig[TensorTile], int]
) -> None:
    run(integer_case(*drawn), device)


def test_every_split_of_a_layer_has_the_same_bytes(device: CusimDevice) -> None:
    layer = in_bytes(SPLIT_LAYER, 1)
    tiles = INTEGER.blocks_of(layer.problem)
    made = {
        run(integer_case(layer, TileConfig(tiles[-1 - split % 3], split)), device).tobytes()
        for split in range(1, 10)
    }
    assert len(made) == 1


def test_every_configuration_is_among_the_cases() -> None:
    wanted = {
        launch.instantiation
        for layer in map(in_bytes, DIRECT_LAYERS + GEMM_LAYERS)
        for config in INTEGER.configs(layer.problem)
        for launch in INTEGER.launches(layer.problem, config, layer.x, layer.y)
    }
    assert len(wanted) == len(INTEGER.blocks_of(_1x1))
    assert wanted <= set(INSTANTIATIONS)


def test_bytes_are_for_three_algorithms_and_they_take_nothing_else() -> None:
    seen = window((4, 4), (3, 3))
    for problem, names in (
        (_1x1, ["integer"]),
        (conv_problem(1, 8, 8, seen, 8), ["integer", "integer depthwise"]),
        (conv_problem(1, 8, 8, seen), ["integer", "integer patch"]),
    ):
        at = replace(problem, precision=Precision.INT8)
        assert [each.name for each in candidates(at)] == names
        for precision in set(Precision) - {Precision.INT8}:
            refusal = INTEGER.supports(replace(problem, precision=precision))
            assert refusal == f"{precision.stored.dtype} tensors; it runs uint8"
            assert INTEGER_PATCH.supports(replace(problem, precision=precision)) == refusal
            if problem.is_depthwise:
                assert INTEGER_DEPTHWISE.supports(replace(problem, precision=precision)) == refusal


def test_a_window_whose_sums_may_not_be_exact_floats_is_refused() -> None:
    wide = conv_problem(1, 8, 8, window((40, 40), (27, 19)), 8)
    refusal = INTEGER_DEPTHWISE.supports(replace(wide, precision=Precision.INT8))
    assert refusal == "513 taps; it runs 512"


def test_depthwise_layers_of_bytes_are_estimated_to_take_less_than_as_a_product() -> None:
    layer = conv_problem(1, 384, 384, window((14, 14), (3, 3), pads=(1,) * 4), 384)
    choice = heuristic(H200)(replace(layer, precision=Precision.INT8))
    assert choice.algorithm == INTEGER_DEPTHWISE


DEFECTS = {
    "zeros outside the image": (
        "const float outside = ALL ? float(*padding) : 0.0f;",
        "const float outside = 0.0f;",
    ),
    "rows outside the image left out": ("ALL ? Taps{0, window.kernel[1]}", "false ? Taps{0, 0}"),
    "another filter's scale": ("scale[filter + i] : 0.0f", "scale[filter] : 0.0f"),
}


@pytest.mark.parametrize("edit", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_of_the_depthwise_kernel_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    device = CusimDevice(source_root=replaced(tmp_path, "depthwise.cu", *edit))
    layer = in_bytes(DEPTHWISE_LAYERS[0], 1)
    with pytest.raises((AssertionError, FaultError)):
        run(integer_case(layer, INTEGER_DEPTHWISE.configs(layer.problem)[0]), device)
    device.close()


def test_floats_are_not_taken_for_bytes() -> None:
    bytes_, floats = Pixels(8, 16, stored=BYTE), Pixels(12, 12)
    config = INTEGER.configs(_1x1)[0]
    with pytest.raises(ValueError, match="a convolution in int8 has tensors of uint8"):
        INTEGER.launches(_1x1, config, bytes_, floats)


def test_a_filter_has_whole_numbers_of_a_byte_channels_filled_up() -> None:
    config = INTEGER.configs(_1x1)[0]
    weight = np.arange(-48, 48).reshape(12, 8, 1, 1)
    prepared = INTEGER.prepare_filter(weight, _1x1, config)
    assert prepared.dtype == np.int8
    assert prepared.shape == (12, 16)
    assert (prepared[:, :8] == weight[:, :, 0, 0]).all()
    assert not prepared[:, 8:].any()
    for wrong in (128, -129, 0.5):
        with pytest.raises(ValueError, match="whole numbers from -128 to 127"):
            INTEGER.prepare_filter(np.full((12, 8, 1, 1), wrong), _1x1, config)


def test_sums_beyond_32_bits_are_refused() -> None:
    numbers = np.full((1, 65_794, 1, 1), -128, np.int32)
    scale = np.ones(1, np.float32)
    requantization(numbers[:, :-2], scale, None, BYTE, BYTE)
    with pytest.raises(ValueError, match="sums of bytes may reach 2147516160, beyond 32 bits"):
        requantization(numbers, scale, None, BYTE, BYTE)
    with pytest.raises(ValueError, match="beyond 32 bits"):
        requantization(numbers[:, :1], scale, np.array([2**31 - 100]), BYTE, BYTE)


def test_offsets_have_what_is_read_outside_the_image_ahead_of_them() -> None:
    x, y = (replace(BYTE, scale=scale, zero_point=7) for scale in (0.5, 0.25))
    numbers = np.array([[3, -5], [1, 1]], np.int32).reshape(2, 2, 1, 1)
    offset, scale = requantization(numbers, np.array([0.5], np.float32), np.array([4, 9]), x, y)
    assert offset[:4].tobytes() == bytes([7] * 16)
    assert offset[4:].tolist() == [4 + 7 * 2, 9 - 7 * 2]
    assert scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("activation", "bounds"),
    [
        (None, (-100, 155)),
        (RELU, (0, 155)),
        (Activation(ActivationKind.CLIP, -1.0, 6.0), (-4, 24)),
        (Activation(ActivationKind.CLIP, 2.0, -0.5), (-2, -2)),  # the upper one holds
        (Activation(ActivationKind.CLIP, -1e30, 1e30), (-100, 155)),
    ],
)
def test_activations_that_clamp_are_bounds_in_steps(
    activation: Activation | None, bounds: tuple[int, int]
) -> None:
    stored = Storage(BYTE.dtype, 0.25, 100)
    assert clamped(stored, activation) == bounds
    steps = np.arange(-300, 300, dtype=np.float32)
    y = np.clip(np.rint(reference.activate(steps / 4, activation) * 4), -100, 155)
    assert (y == np.clip(steps, *bounds)).all()


def test_an_activation_that_does_more_is_refused() -> None:
    with pytest.raises(ValueError, match="a sum of bytes does not end in Tanh"):
        clamped(BYTE, Activation(ActivationKind.TANH))
