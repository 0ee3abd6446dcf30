"""Convolutions of bytes beyond the common cases: any layer, every split, refusals."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from cusim.build import ORDERED, PLAIN
from cusim.device import CusimDevice
from kernels.convolution.algorithms import candidates
from kernels.convolution.integer import requantization
from kernels.convolution.integer_gemm import IntegerConv
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import TensorTile
from kernels.device.compile import compile_all
from kernels.device.gpus import H200
from kernels.device.machine_code import disassemble
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.operations.quantize import clamped
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.precision import BYTE, Precision, Storage
from kernels.tuning.heuristic import heuristic
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.integer import (
    INTEGER,
    INTEGER_DEPTHWISE,
    INTEGER_PATCH,
    INTEGER_WARPGROUPS,
    in_bytes,
    integer_case,
    tiles_of,
)
from tests.support.kernels import reference
from tests.support.kernels.conv_layers import (
    DEPTHWISE_LAYERS,
    DIRECT_LAYERS,
    GEMM_LAYERS,
    SPLIT_LAYER,
    Layer,
    dense,
)
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.resources import CACHE
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window

_1x1 = replace(conv_problem(1, 8, 12, window((4, 4), (1, 1))), precision=Precision.INT8)


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, TileConfig[TensorTile], int]:
    """Draw a layer of bytes with any tile, split into more parts than the planner would use."""
    layer = in_bytes(draw(layers()), draw(st.integers(0, 7)))
    tile = draw(st.sampled_from((*tiles_of(INTEGER), *tiles_of(INTEGER_WARPGROUPS))))
    return layer, TileConfig(tile, draw(st.integers(1, 8))), draw(st.integers(0, 99))


(
    test_any_layer_is_its_reference_to_the_bit_by_any_tile,
    test_very_many_layers_are_their_reference_to_the_bit,
) = of_drawn(integer_case, chosen(), few=20, many=3000)


def test_every_split_of_a_layer_has_the_same_bytes(device: CusimDevice) -> None:
    layer = in_bytes(SPLIT_LAYER, 1)
    made = {
        run(integer_case(layer, TileConfig(tiles[-1 - split % 3], split)), device).tobytes()
        for tiles in map(tiles_of, (INTEGER, INTEGER_WARPGROUPS))
        for split in range(1, 10)
    }
    assert len(made) == 1


@pytest.mark.parametrize("algorithm", [INTEGER, INTEGER_WARPGROUPS], ids=lambda each: each.name)
def test_every_configuration_is_among_the_cases(algorithm: IntegerConv) -> None:
    wanted = {
        launch.instantiation
        for layer in map(in_bytes, DIRECT_LAYERS + GEMM_LAYERS)
        for config in algorithm.configs(layer.problem)
        for launch in algorithm.launches(layer.problem, config, ConvTensors(layer.x, layer.y))
    }
    assert len(wanted) == len(tiles_of(algorithm))
    assert wanted <= set(INSTANTIATIONS)


def test_bytes_are_for_four_algorithms_and_they_take_nothing_else() -> None:
    seen = window((4, 4), (3, 3))
    for problem, names in (
        (_1x1, ["integer", "integer wgmma"]),
        (
            conv_problem(1, 8, 8, seen, 8),
            ["integer", "integer wgmma", "integer depthwise"],
        ),
        (conv_problem(1, 8, 8, seen), ["integer", "integer wgmma", "integer patch"]),
    ):
        at = replace(problem, precision=Precision.INT8)
        assert [each.name for each in candidates(at)] == names
        for precision in set(Precision) - {Precision.INT8}:
            refusal = INTEGER.supports(replace(problem, precision=precision))
            assert refusal == f"{precision.stored.dtype} tensors; supported: uint8"
            assert INTEGER_PATCH.supports(replace(problem, precision=precision)) == refusal
            assert INTEGER_WARPGROUPS.supports(replace(problem, precision=precision)) == refusal
            if problem.is_depthwise:
                assert INTEGER_DEPTHWISE.supports(replace(problem, precision=precision)) == refusal


def test_a_window_whose_sums_may_not_be_exact_floats_is_refused() -> None:
    wide = conv_problem(1, 8, 8, window((40, 40), (27, 19)), 8)
    refusal = INTEGER_DEPTHWISE.supports(replace(wide, precision=Precision.INT8))
    assert refusal == "513 taps; supported: up to 512"


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
    layer = in_bytes(DEPTHWISE_LAYERS[0], 1)
    case = integer_case(layer, INTEGER_DEPTHWISE.configs(layer.problem)[0])
    assert notices(replaced(tmp_path, "depthwise.cu", *edit), [case])


OF_WARPGROUPS = {
    "no proxy fence": ("if constexpr (WARPGROUPS) fence_proxy_async();", ";"),
    "the proxy fence before the copies end": (
        "cp_async_wait<STAGES - 2>();\n    if constexpr (WARPGROUPS) fence_proxy_async();",
        "if constexpr (WARPGROUPS) fence_proxy_async();\n    cp_async_wait<STAGES - 2>();",
    ),
    "no barrier of the loop": (
        "__syncthreads();  // this chunk is there for all, and the one before it read by all",
        ";",
    ),
    "copies waited for too late": ("cp_async_wait<STAGES - 2>()", "cp_async_wait<STAGES - 1>()"),
    "no wgmma.fence": ("wgmma_fence();", ";"),
    "no commit": ("wgmma_commit();", ";"),
    "no wait": ("wgmma_wait<0>();", ";"),
    "a wait for the chunk before": ("wgmma_wait<0>();", "wgmma_wait<1>();"),
    "the first product adds": ("adds = add || step > 0", "adds = true"),
    "every product of a chunk stores": ("adds = add || step > 0", "adds = add"),
    "a chunk stores instead of adding": ("chunk > first_chunk)", "false)"),
    "a stage refilled while it is read": ("writing = STAGES - 1;", "writing = 0;"),
    "pixels of the first warpgroup for all": ("warp / 4 * (64 * BK)", "0 * warp"),
    "filters where pixels lie": ("wgmma_tile(begin + BM * BK)", "wgmma_tile(begin)"),
    "tiles aligned to 128 bytes": ("SWIZZLED_SHARED", "DYNAMIC_SHARED"),
    "no zeros for a part without chunks": ("clear(sums);  // no product", ";  // no product"),
    "sums written before the last chunk is read": (
        "__syncthreads();  // all have read the last chunk",
        ";",
    ),
}


@pytest.mark.parametrize("edit", OF_WARPGROUPS.values(), ids=OF_WARPGROUPS)
def test_a_defect_of_warpgroups_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    """One of two builds must notice the defect; one of them shows plain stores."""
    cases = []
    # Of 6 chunks, whose channels are copied one by one; and of fewer chunks than parts.
    for channels, split in ((70, 1), (12, 4)):
        problem = conv_problem(1, channels, 40, window((9, 15), (3, 3), pads=(1, 1, 1, 1)))
        layer = in_bytes(Layer("of a defect", problem, dense(channels), dense(40)))
        cases.append(integer_case(layer, TileConfig(tiles_of(INTEGER_WARPGROUPS)[1], split)))
    assert notices(replaced(tmp_path, "integer_gemm.cu", *edit), cases, (PLAIN, ORDERED))


@pytest.mark.parametrize("tile", tiles_of(INTEGER_WARPGROUPS), ids=str)
def test_in_machine_code_products_of_a_chunk_are_one_group_that_nothing_waits_for(
    tile: TensorTile,
) -> None:
    kernel = INTEGER_WARPGROUPS.instantiation(_1x1, TileConfig(tile))
    assert kernel in INSTANTIATIONS
    ((_, cubin),) = compile_all([kernel], ["90a"], CACHE).items()
    listed = disassemble(cubin)
    waiting = ["gsb0" in each.operands for each in listed if each.base == "IGMMA"]
    assert waiting == [False, False, False, True]
    code = Counter(each.opcode for each in listed)
    assert code["WARPGROUP.ARRIVE"] == code["WARPGROUP.DEPBAR.LE"] == 1
    assert not any(opcode.startswith(("LDSM", "HMMA", "IMMA")) for opcode in code)
    assert cubin.resources.static_shared == INTEGER_WARPGROUPS.STATIC_BYTES
    assert cubin.resources.spill_stores == cubin.resources.spill_loads == 0


def test_floats_are_not_taken_for_bytes() -> None:
    bytes_, floats = Pixels(8, 16, stored=BYTE), Pixels(12, 12)
    config = INTEGER.configs(_1x1)[0]
    with pytest.raises(ValueError, match=r"at precision int8, .* tensors must be uint8"):
        INTEGER.launches(_1x1, config, ConvTensors(bytes_, floats))


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
    with pytest.raises(ValueError, match="products may reach 2147516160, beyond 32 bits"):
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
    with pytest.raises(ValueError, match=r"only activations that clamp, .* got Tanh"):
        clamped(BYTE, Activation(ActivationKind.TANH))
