"""Direct convolution on tensor cores: any layer, patches, split sums, planted defects."""

from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cusim.device import CusimDevice, Order
from kernels.convolution.algorithms import ConvChoice, candidates, choices
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_patch import (
    PATCH_TILES,
    PatchTile,
)
from kernels.layout.operands import ConvTensors
from kernels.layout.patches import paired, patch_of
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.problems.window import Window
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import at_precision
from tests.support.cases.tensor_patch import LAYERS, PATCH
from tests.support.kernels import resources
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import Layer, drawn_layer
from tests.support.kernels.kernel_case import run, view
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window, windows

EVERY_TILE = pytest.mark.parametrize("tile", PATCH_TILES, ids=str)


def half(n: int, c: int, k: int, seen: Window) -> ConvProblem:
    """Return a problem in fp16."""
    return replace(conv_problem(n, c, k, seen), precision=Precision.FP16)


def same(c: int, k: int, *size: int) -> ConvProblem:
    """Return a layer whose output is as large as its input, as in most networks."""
    return half(1, c, k, window(size, (3, 3), pads=(1, 1, 1, 1)))


def halves(channels: int) -> Pixels:
    """Return a layout without gaps between pixels."""
    return Pixels(channels, channels, stored=HALF)


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw any layer that the kernel supports, in any configuration."""
    c = draw(st.integers(1, 4) | st.integers(1, 200))
    problem = half(draw(st.integers(1, 5)), c, draw(st.integers(1, 70)), draw(windows()))
    assume(PATCH.supports(problem) is None)
    layer = at_precision(drawn_layer(draw, problem), Precision.FP16)
    return layer, ConvChoice(PATCH, draw(st.sampled_from(PATCH.configs(problem))))


test_any_layer_is_its_reference, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, drawn_cases(), few=20, many=3000
)


def test_every_configuration_is_among_the_cases() -> None:
    supported = [layer for layer in LAYERS if PATCH.supports(layer.problem) is None]
    wanted = {
        PATCH.instantiation(layer.problem, config)
        for layer in supported
        for config in PATCH.configs(layer.problem)
    }
    assert len(wanted) == 2 * len(PATCH_TILES)
    assert wanted <= set(INSTANTIATIONS)
    assert {paired(layer.problem) for layer in supported} == {False, True}


@given(windows(), st.integers(1, 9), st.sampled_from(PATCH_TILES))
def test_regions_cover_every_output_once(window: Window, n: int, tile: PatchTile) -> None:
    assume(len(window.input) == 2)
    problem = half(n, 8, 40, window)
    assume(PATCH.supports(problem) is None)
    (launched,) = PATCH.launches(problem, TileConfig(tile), ConvTensors(halves(8), halves(40)))
    region = patch_of(problem, tile.bm).region
    along = [-(-size // of) for size, of in zip((n, *window.output), region, strict=True)]
    assert launched.grid == (prod(along) * -(-40 // tile.bn), 1, 1)
    (work,) = PATCH.work(problem, TileConfig(tile))
    assert prod(launched.grid) == work.blocks


def test_a_split_sum_is_the_same_to_the_bit_in_any_order() -> None:
    problem = same(140, 36, 5, 6)
    layer = Layer("split", problem, halves(140), halves(36))
    case = conv_case(layer, ConvChoice(PATCH, PATCH.configs(problem)[-1]))
    found = []
    for order in (Order.FORWARD, Order.REVERSED, Order.RANDOM):
        device = CusimDevice(order=order)
        found.append(view(run(case, device), case.check().layout).tobytes())
        device.close()
    assert all(one == other for one, other in pairwise(found))


def test_a_filter_lies_slice_by_slice_filled_up_with_zeros() -> None:
    problem = same(72, 10, 4, 4)
    weight = normal(problem.filter_shape)
    config = PATCH.configs(problem)[0]
    prepared = PATCH.prepare_filter(weight, problem, config)
    assert prepared.dtype == HALF
    assert prepared.shape == (10, 2, 6 * 64)  # 9 taps of 40 channels, to whole chunks
    assert prepared[7, 1, 5 * 40 + 3] == weight[7, 43, 1, 2].astype(HALF)
    assert np.count_nonzero(prepared) == weight.size
    with pytest.raises(ValueError, match="the filter must have shape"):
        PATCH.prepare_filter(normal((10, 72, 3, 1)), problem, config)


def test_a_filter_of_few_channels_lies_in_pairs_of_taps() -> None:
    problem = half(1, 3, 5, window((9, 9), (3, 3), strides=(2, 2)))
    weight = normal(problem.filter_shape)
    prepared = PATCH.prepare_filter(weight, problem, PATCH.configs(problem)[0])
    assert prepared.shape == (5, 1, 64)
    rows = prepared[2, 0, : 3 * 2 * 8].reshape(3, 2, 2, 4)  # R, pairs, of a pair, channels
    assert rows[1, 0, 1, 2] == weight[2, 2, 1, 1].astype(HALF)
    assert np.count_nonzero(prepared) == weight.size


@EVERY_TILE
def test_the_cost_model_is_told_what_a_block_takes(tile: PatchTile) -> None:
    problem = same(128, 64, 14, 14)
    table = resources.read()
    (work,) = PATCH.work(problem, TileConfig(tile))
    (launched,) = PATCH.launches(problem, TileConfig(tile), ConvTensors(halves(128), halves(64)))
    cell = table[f"tensor_patch.cu {launched.instantiation.expression}"]["90a"].split()
    assert work.shared_bytes == launched.shared_bytes + int(cell[cell.index("shared") + 1])
    assert work.threads == launched.block[0]
    # An mma is of 16 pixels, 8 filters and 16 channels.
    assert work.products * work.threads / 32 == 9 * 128 * tile.bm * tile.bn / (16 * 8 * 16)


def test_refusals_say_what_it_runs() -> None:
    assert PATCH.supports(replace(same(8, 8, 5, 5), precision=Precision.TF32)) is not None
    few = half(1, 8, 8, window((5, 5), (1, 3)))
    assert PATCH.supports(few) == "kernel 1x3; supported: 4 to 256 taps"
    three = same(3, 8, 5, 5)
    assert PATCH.supports(three) == "3 channels at stride 1x1; supported: even strides"
    far = half(1, 64, 8, window((99, 99), (3, 3), dilations=(40, 40)))
    assert PATCH.supports(far) == "a window of 944784 bytes; supported: up to 73728 bytes"
    assert "tensor patch" not in {each.name for each in candidates(few)}
    assert "tensor patch" in {each.name for each in candidates(same(8, 8, 5, 5))}


def test_smaller_gpus_have_tiles_that_fit() -> None:
    def fitting(nbytes: int) -> set[str]:
        found = choices(same(256, 256, 14, 14), nbytes)
        return {str(each.config.tile) for each in found if each.algorithm == PATCH}

    assert fitting(227 << 10) == set(map(str, PATCH_TILES))
    assert fitting(99 << 10) >= {"64x32", "64x16"}  # sm_86, 89 and 120


@pytest.mark.parametrize(
    ("problem", "x", "y"),
    [
        (same(64, 64, 224, 224).with_batch(8), Pixels(64, 8192, stored=HALF), halves(64)),
        (same(64, 64, 224, 224).with_batch(8), halves(64), Pixels(64, 8192, stored=HALF)),
    ],
    ids=["x", "y"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels
) -> None:
    with pytest.raises(ValueError, match="beyond 32 bits"):
        PATCH.launches(problem, PATCH.configs(problem)[0], ConvTensors(x, y))


DEFECTS = {
    "a fragment's other half": ("filters[n + i / 2][i % 2]", "filters[n + i / 2][1 - i % 2]"),
    "the offsets of the other half of a warp": (
        "(offsets) + lane / 16",
        "(offsets) + 1 - lane / 16",
    ),
    "a weight stage that stays": ("writing + 1 == STAGES ? 0 : writing + 1", "writing"),
    "the next patch copied over this one": (
        "copy_patch(slice + 1, next)",
        "copy_patch(slice + 1, patch)",
    ),
    "no barrier between patches": ("if (slice > first_slice) __syncthreads();", ";"),
    "odd columns beside even ones": ("column_phase * sizes.phase[1]", "column_phase"),
    "the last slice of the block before": (
        "quotient(sizes.slices * split, sizes.splits)",
        "quotient(sizes.slices * split, sizes.splits) - (split > 0)",
    ),
    "no zeros behind a place's channels": (
        "unit >= sizes.copied_vectors",
        "unit >= sizes.tap_vectors",
    ),
}


@pytest.mark.parametrize("edit", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    seen = window((9, 20), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    layer = Layer("of several slices", half(1, 270, 72, seen), halves(270), halves(72))
    case = conv_case(layer, ConvChoice(PATCH, TileConfig(PATCH_TILES[3], 2)))
    assert notices(replaced(tmp_path, "tensor_patch.cu", *edit), [case])


def test_a_pair_that_ends_beyond_the_window_is_masked(tmp_path: Path) -> None:
    """A NaN in that place would not disappear if only the weight were 0."""
    root = replaced(tmp_path, "tensor_patch.cu", "lane % 4 >= 2", "lane % 4 >= 4")
    layer = next(each for each in LAYERS if each.nan and paired(each.problem))
    assert notices(root, [conv_case(layer, ConvChoice(PATCH, TileConfig(PATCH_TILES[1])))])
