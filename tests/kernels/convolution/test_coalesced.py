"""cuConv's configurations: all layers of the paper, its planes, and accesses within bounds."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.kernels.suites import CUCONV
from benchmarks.kernels.suites import Layer as SuiteLayer
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.coalesced import TILES, CoalescedConfig, planes, tiles
from kernels.convolution.split_sum import MAX_WORKSPACE_BYTES
from kernels.device.gpus import H200
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.coalesced import COALESCED
from tests.support.cases.conv import conv_case
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer
from tests.support.kernels.kernel_case import launch
from tests.support.kernels.rig import of_drawn
from tests.support.kernels.windows import conv_problem, window

_3x3 = conv_problem(1, 40, 36, window((6, 7), (3, 3), pads=(1,) * 4))
_1x1 = conv_problem(1, 40, 36, window((6, 7), (1, 1)))
_VGG_224 = conv_problem(8, 64, 64, window((224, 224), (3, 3), pads=(1,) * 4))


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw a layer with any padding and any configuration, split into more parts than the planner
    would use."""
    r = draw(st.sampled_from((1, 3, 5)))
    pads = tuple(draw(st.integers(0, 6)) for _ in range(4))
    size = tuple(
        draw(st.integers(max(1, r - pads[axis] - pads[axis + 2]), 17)) for axis in range(2)
    )
    n, c, k = draw(st.integers(1, 2)), draw(st.integers(1, 70)), draw(st.integers(1, 40))
    problem = conv_problem(n, c, k, window(size, (r, r), pads=pads))
    layer = drawn_layer(draw, problem)
    config = draw(st.sampled_from(COALESCED.configs(problem)))
    config = replace(config, strips=draw(st.integers(1, 6)), fused=draw(st.booleans()))
    return layer, ConvChoice(COALESCED, config)


test_any_layer_is_its_reference_in_any_way, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, chosen(), few=25, many=500
)


@pytest.mark.parametrize("layer", CUCONV, ids=lambda layer: layer.name)
def test_every_layer_of_the_papers_networks_has_configurations_in_bounds(layer: SuiteLayer) -> None:
    for n in (1, 2, 4, 8, 256):
        problem = layer.problem.with_batch(n)
        assert COALESCED.supports(problem) is None
        configs = COALESCED.configs(problem)
        assert len(set(map(str, configs))) == len(configs) > 0
        for config in configs:
            assert sum(COALESCED.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
            launches = COALESCED.launches(
                problem, config, ConvTensors(dense(problem.c), dense(problem.k))
            )
            assert {each.instantiation for each in launches} <= set(INSTANTIATIONS)
            works = COALESCED.work(problem, config)
            for each, work in zip(launches, works, strict=True):
                assert each.shared_bytes <= work.shared_bytes <= H200.max_shared_bytes


def test_with_one_tap_and_one_strip_the_planes_are_the_papers() -> None:
    tile = TILES[1, 1][0]
    for problem, count in ((_1x1, 1), (_3x3, 9)):
        config = CoalescedConfig(tile, taps=(1, 1), strips=1, fused=count == 1)
        assert config in COALESCED.configs(problem)
        assert planes(problem, config) == count
        launches = COALESCED.launches(problem, config, ConvTensors(dense(40), dense(36)))
        # 1×1 needs the first stage only.
        kernels = ["conv_coalesced"] if count == 1 else ["conv_coalesced", "sum_planes"]
        assert [each.instantiation.kernel for each in launches] == kernels
        room = 0 if count == 1 else 4 * count * problem.window.output_volume * 36
        assert sum(COALESCED.workspace(problem, config).values()) == room
        assert COALESCED.counter_bytes(problem, config) == 0


@pytest.mark.parametrize("layer", CUCONV, ids=lambda layer: layer.name)
def test_a_strip_more_spares_every_block_a_chunk(layer: SuiteLayer) -> None:
    for taps, each in TILES.items():
        for tile in each:
            configs = COALESCED.configs(layer.problem)
            strips = sorted({one.strips for one in configs if (one.tile, one.taps) == (tile, taps)})
            chunks = -(-layer.problem.c // tile.chunk)
            of_a_block = [-(-chunks // count) for count in strips]
            assert all(fewer < more for more, fewer in pairwise(of_a_block))
            assert all(count <= chunks for count in strips)


def test_a_small_image_is_one_tile_and_pixels_of_1x1_go_on_from_image_to_image() -> None:
    seven = conv_problem(3, 8, 8, window((7, 7), (3, 3), pads=(1,) * 4))
    assert tiles(seven, TILES[3, 3][0]) == 3
    ones = conv_problem(8, 8, 8, window((7, 7), (1, 1)))
    assert tiles(ones, TILES[1, 1][0]) == 7  # of 56 pixels, 8 · 49 in all
    padded = conv_problem(8, 8, 8, window((5, 5), (1, 1), pads=(1,) * 4))
    assert tiles(padded, TILES[1, 1][0]) == 8


@pytest.mark.parametrize("strips", [1, 3])
@pytest.mark.parametrize("taps", [(1, 1), (1, 3), (3, 3)], ids=str)
def test_planes_are_summed_alike_launch_after_launch_and_in_one_launch_or_two(
    device: CusimDevice, taps: tuple[int, int], strips: int
) -> None:
    c, k = 100, 36
    problem = conv_problem(1, c, k, window((6, 7), (3, 3), pads=(1,) * 4))
    fused = CoalescedConfig(TILES[taps][0], taps, strips)
    weight = COALESCED.prepare_filter(normal(problem.filter_shape), problem, fused)
    stream = device.stream()
    sizes = {
        "x": 4 * c * 42,
        "weight": weight.nbytes,
        "y": 4 * k * 42,
        "planes": COALESCED.workspace(problem, fused).get("planes", 4),
        "counters": max(4, COALESCED.counter_bytes(problem, fused)),
    }
    buffers = {
        name: device.allocate(nbytes, constant=name == "weight") for name, nbytes in sizes.items()
    }
    addresses = {name: buffer.address for name, buffer in buffers.items()}
    device.upload(addresses["x"], normal((42, c)), stream)
    device.upload(addresses["weight"], weight, stream)
    device.fill(addresses["counters"], sizes["counters"], 0, stream)
    results = []
    for config in (fused, fused, replace(fused, fused=False), fused):
        device.fill(addresses["y"], sizes["y"], 0xFF, stream)
        device.fill(addresses["planes"], sizes["planes"], 0xFF, stream)
        for each in COALESCED.launches(problem, config, ConvTensors(dense(c), dense(k))):
            launch(each, device, addresses, stream)
        result = np.empty((42, k), np.float32)
        device.download(result, addresses["y"], stream)
        stream.synchronize()
        results.append(result)
    for buffer in buffers.values():
        buffer.free()
    assert not np.isnan(results[0]).any()
    assert all(one.tobytes() == other.tobytes() for one, other in pairwise(results))


@pytest.mark.parametrize(
    ("problem", "x", "y"),
    [
        (_VGG_224, Pixels(64, 8192), dense(64)),
        (_VGG_224, dense(64), Pixels(64, 8192)),
        (replace(_VGG_224, c=2**16, k=2**12), dense(2**16), dense(2**12)),
        (
            replace(_VGG_224, n=2**15, c=1, k=1, window=window((224, 224), (1, 1))),
            dense(1),
            Pixels(1, 2),
        ),
    ],
    ids=["x", "y", "filter", "pixels"],
)
def test_tensors_beyond_32_bit_indices_are_refused(
    problem: ConvProblem, x: Pixels, y: Pixels
) -> None:
    config = COALESCED.configs(problem)[0]
    with pytest.raises(ValueError, match="beyond 32 bits"):
        COALESCED.launches(problem, config, ConvTensors(x, y))
