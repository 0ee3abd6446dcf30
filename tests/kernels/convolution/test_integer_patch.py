"""Direct convolution of bytes: any layer bit-identically, every split, planted defects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from cusim.device import CusimDevice
from kernels.convolution.integer_patch import INTEGER_PATCH_TILES
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_patch import PatchTile
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.precision import BYTE, Precision
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.integer import INTEGER_PATCH, in_bytes, integer_case
from tests.support.kernels import resources
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import Layer, dense
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window

_SLICED = in_bytes(
    Layer(
        "of several slices",
        conv_problem(1, 520, 24, window((13, 13), (3, 3), strides=(2, 1), pads=(1,) * 4)),
        dense(520),
        dense(24),
        dense(24),
    ),
    1,
)
"""Of 5 slices of 104 channels."""


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, TileConfig[PatchTile], int]:
    """Draw a layer of bytes with any tile and split."""
    layer = in_bytes(draw(layers()), draw(st.integers(0, 7)))
    assume(INTEGER_PATCH.supports(layer.problem) is None)
    config = draw(st.sampled_from(INTEGER_PATCH.configs(layer.problem)))
    return layer, config, draw(st.integers(0, 99))


(
    test_any_layer_is_its_reference_to_the_bit_by_any_tile,
    test_very_many_layers_are_their_reference_to_the_bit,
) = of_drawn(integer_case, chosen(), few=20, many=3000)


def test_every_split_of_a_layer_has_the_same_bytes(device: CusimDevice) -> None:
    tile = INTEGER_PATCH_TILES[-1]
    made = {
        run(integer_case(_SLICED, TileConfig(tile, split)), device).tobytes()
        for split in range(1, 6)
    }
    assert len(made) == 1


def test_every_tile_is_among_the_cases() -> None:
    wanted = {
        INTEGER_PATCH.instantiation(_SLICED.problem, TileConfig(tile))
        for tile in INTEGER_PATCH_TILES
    }
    assert len(wanted) == len(INTEGER_PATCH_TILES)
    assert wanted <= set(INSTANTIATIONS)


def test_a_filter_lies_slice_by_slice_in_whole_numbers() -> None:
    config = INTEGER_PATCH.configs(_SLICED.problem)[0]
    weight = np.rint(50 * normal(_SLICED.problem.filter_shape)).clip(-128, 127)
    prepared = INTEGER_PATCH.prepare_filter(weight, _SLICED.problem, config)
    assert prepared.dtype == np.int8
    # 9 taps of 112 channels, in whole vectors, to whole chunks.
    assert prepared.shape == (24, 5, 8 * 128)
    assert prepared[7, 1, 5 * 112 + 3] == weight[7, 112 + 3, 1, 2]
    assert np.count_nonzero(prepared) == np.count_nonzero(weight)
    with pytest.raises(ValueError, match="whole numbers from -128 to 127"):
        INTEGER_PATCH.prepare_filter(weight + 0.5, _SLICED.problem, config)


@pytest.mark.parametrize("tile", INTEGER_PATCH_TILES, ids=str)
def test_the_cost_model_is_told_what_a_block_takes(tile: PatchTile) -> None:
    problem = replace(
        conv_problem(1, 128, 64, window((14, 14), (3, 3), pads=(1,) * 4)), precision=Precision.INT8
    )
    table = resources.read()
    (work,) = INTEGER_PATCH.work(problem, TileConfig(tile))
    x, y = (Pixels(channels, channels, stored=BYTE) for channels in (128, 64))
    (launched,) = INTEGER_PATCH.launches(problem, TileConfig(tile), ConvTensors(x, y))
    cell = table[f"tensor_patch.cu {launched.instantiation.expression}"]["90a"].split()
    assert work.shared_bytes == launched.shared_bytes + int(cell[cell.index("shared") + 1])
    assert work.threads == launched.block[0]
    # An mma is of 16 pixels, 8 filters and 32 channels.
    assert work.products * work.threads / 32 == 9 * 128 * tile.bm * tile.bn / (16 * 8 * 32)


DEFECTS = {
    "zeros outside the image": (
        "tensor_patch.cu",
        "exist > 0 ? x + (pixel.x + channel) : padding",
        "x + (exist > 0 ? pixel.x + channel : 0)",
    ),
    "a bias left out": ("requantize.cuh", "sum.at[c] + plus.at[c]", "sum.at[c]"),
    "a weight stage that stays": (
        "tensor_patch.cu",
        "writing + 1 == STAGES ? 0 : writing + 1",
        "writing",
    ),
    "a part added twice": ("requantize.cuh", "if (other != split) sum", "if (other >= 0) sum"),
    "a residual's zero point left out": ("requantize.cuh", "(WHOLE + by.residual_zero)", "WHOLE"),
    "no rounding ahead of the residual": (
        "requantize.cuh",
        "whole_within(value, by.sum_least, by.sum_most)",
        "value",
    ),
    "truncation": ("requantize.cuh", "by.most) + 1.5f * WHOLE", "by.most) - 0.5f + 1.5f * WHOLE"),
    "the second pixel's residual of the first": (
        "requantize.cuh",
        "times, added[j], to.rounding",
        "times, added[0], to.rounding",
    ),
}


@pytest.mark.parametrize("edit", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_noticed(edit: tuple[str, str, str], tmp_path: Path) -> None:
    case = integer_case(_SLICED, TileConfig(INTEGER_PATCH_TILES[3], 2))
    assert notices(replaced(tmp_path, *edit), [case])
