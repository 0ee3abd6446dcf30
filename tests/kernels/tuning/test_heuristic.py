"""The choices for convolutions that have not been measured."""

from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kernels.suites import CUCONV, CUCONV_NETWORKS
from cusim.device import CusimDevice
from kernels.convolution.algorithms import Algorithm, ConvChoice, choices
from kernels.convolution.depthwise import DepthwiseConfig
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.warpgroup_gemm import WarpgroupConv
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.work import Work
from kernels.device.device import Instantiation
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.window import Window
from kernels.tuning.constants import ASSUMED
from kernels.tuning.heuristic import (
    Facts,
    choose,
    estimated_cycles,
    fills,
    heuristic,
    launch_cycles,
    parts,
    resident_blocks,
    usable,
)
from kernels.tuning.profile_table import profile_of
from kernels.tuning.static_profile import StaticProfile
from tests.support.kernels.windows import conv_problem, window, windows


def conv(c: int, k: int, size: int, r: int, stride: int = 1) -> ConvProblem:
    """Return a layer as in most networks: square, padded by half its filter."""
    seen = window((size, size), (r, r), strides=(stride, stride), pads=(r // 2,) * 4)
    return conv_problem(1, c, k, seen)


LAYERS = [
    conv(3, 64, 224, 7, 2),
    conv(64, 64, 224, 3),
    conv(256, 256, 56, 3),
    conv(512, 512, 14, 3),
    conv(512, 512, 7, 3),
    conv(256, 64, 56, 1),
    conv(512, 128, 28, 1),
    conv(2048, 512, 7, 1),
]


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("layer", LAYERS[1:], ids=str)
def test_the_blocks_fill_the_machine(layer: ConvProblem, n: int) -> None:
    problem = layer.with_batch(n)
    algorithm, config, _ = heuristic(H200)(problem)
    longest = max(algorithm.work(problem, config), key=lambda work: work.blocks * work.products)
    assert longest.blocks >= 0.8 * H200.multiprocessors
    assert longest.blocks * longest.threads >= 3 * 32 * H200.multiprocessors


def test_a_small_machine_does_not_split_what_fills_it() -> None:
    for layer in LAYERS[1:5]:
        algorithm, config, _ = heuristic(Facts(multiprocessors=2))(layer)
        assert all(work.tail_bytes == 0 for work in algorithm.work(layer, config))


@pytest.mark.parametrize("n", [1, 8])
def test_winograd_runs_3x3_and_a_matrix_product_1x1_and_strides(n: int) -> None:
    kinds = [heuristic(H200)(layer.with_batch(n)).algorithm.name.split()[0] for layer in LAYERS]
    assert kinds[:4] == ["direct", *["winograd"] * 3]
    assert set(kinds[5:]) <= {"gemm", "coalesced"}


@pytest.mark.parametrize(
    "layer", [conv(832, 32, 7, 1), conv(192, 384, 7, 3), conv(48, 128, 7, 5)], ids=str
)
def test_the_layers_that_the_paper_gains_most_with_are_coalesced(layer: ConvProblem) -> None:
    assert heuristic(H200)(layer).algorithm.name == "coalesced"


def test_equal_costs_favour_the_more_accurate_points() -> None:
    chosen = [heuristic(H200)(layer.with_batch(n)) for layer in LAYERS[1:5] for n in (1, 8)]
    fused = [each for each in chosen if isinstance(each.algorithm, WinogradConv)]
    assert fused
    for algorithm, config, _ in fused:
        assert isinstance(algorithm, WinogradConv)
        assert config.points is algorithm.points[0]


def test_several_launches_must_look_clearly_better_than_one() -> None:
    @dataclass(frozen=True)
    class Taking:
        works: tuple[Work, ...]

        def work(self, problem: ConvProblem, config: object) -> tuple[Work, ...]:
            return self.works

    def taking(*works: Work) -> ConvChoice:
        return ConvChoice(cast(Algorithm[None], Taking(works)), None)

    def cycles(*works: Work) -> float:
        return estimated_cycles(LAYERS[0], taking(*works), H200)

    def chosen(*candidates: ConvChoice) -> ConvChoice:
        return choose(LAYERS[0], candidates, H200)

    algorithm, config, _ = choices(LAYERS[1])[0]
    (work,) = algorithm.work(LAYERS[1], config)
    one = replace(work, products=1e9)  # so that starts and ends are nothing
    half, third = replace(work, products=0.5e9), replace(work, products=0.4e9)
    assert cycles(half, half) == pytest.approx(cycles(one), rel=1e-3)
    assert cycles(half) < cycles(one) < cycles(one, half)
    assert chosen(taking(half, half), taking(one)) == taking(one)
    assert chosen(taking(one), taking(third, third)) == taking(third, third)


def test_a_launch_takes_at_least_its_gap_and_a_way_through_its_code() -> None:
    for layer in LAYERS:
        for choice in choices(layer):
            works = choice.algorithm.work(layer, choice.config)
            least = sum(
                ASSUMED.launch_cycles + profile_of(each.kernel).start.stalls for each in works
            )
            estimate = estimated_cycles(layer, choice, H200, warm=True)
            assert estimate > least
            each = launch_cycles(layer, choice, H200, warm=True)
            assert estimate == pytest.approx(sum(each) + len(works) * ASSUMED.launch_cycles)


def test_weights_in_the_cache_are_not_waited_for() -> None:
    layer = conv(4096, 4096, 1, 3)
    choice = heuristic(H200)(layer)
    cold, warm = (estimated_cycles(layer, choice, H200, warm=each) for each in (False, True))
    (work,) = choice.algorithm.work(layer, choice.config)
    assert warm < cold
    assert cold > work.weight_bytes / (132 * 18)


def test_a_slower_start_and_end_make_a_launch_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = heuristic(H200)(LAYERS[3])
    before = estimated_cycles(LAYERS[3], choice, H200)

    def slower(kernel: Instantiation) -> StaticProfile:
        profile = profile_of(kernel)
        return replace(profile, start=replace(profile.start, stalls=profile.start.stalls + 5000))

    monkeypatch.setattr("kernels.tuning.heuristic.profile_of", slower)
    assert estimated_cycles(LAYERS[3], choice, H200) >= before + 4000


def test_depthwise_has_its_own_kernel_and_runs_shorten_with_the_image() -> None:
    def run(size: int, c: int) -> int:
        seen = window((size, size), (3, 3), pads=(1,) * 4)
        config = heuristic(H200)(conv_problem(1, c, c, seen, c)).config
        assert isinstance(config, DepthwiseConfig)
        return config.run

    assert run(112, 64) == 4
    assert run(7, 96) == 1


@given(windows(), st.sampled_from((1, 2, 8)), st.integers(1, 8), st.integers(1, 200))
def test_a_candidate_that_costs_about_the_least_is_chosen(
    seen: Window, groups: int, n: int, multiprocessors: int
) -> None:
    problem = conv_problem(n, 8, 16, seen, groups)
    candidates, facts = choices(problem), Facts(multiprocessors)
    chosen = choose(problem, candidates, facts)
    costs = [estimated_cycles(problem, each, facts) for each in candidates]
    assert chosen in candidates
    assert 0 < estimated_cycles(problem, chosen, facts) <= 1.05 * 1.2 * min(costs)
    assert choose(problem, [chosen], facts) == chosen


def of_network(name: str) -> list[ConvProblem]:
    """Return a network's layers in the cuConv paper, for one image."""
    return [each.problem for each in CUCONV if each.name in CUCONV_NETWORKS[name]]


@pytest.mark.parametrize("network", ["GoogLeNet", "ResNet-50", "SqueezeNet", "VGG-19"])
def test_one_image_fills_the_machine_where_that_costs_at_most_5_percent(network: str) -> None:
    for layer in of_network(network):
        candidates = choices(layer, H200.max_shared_bytes)
        chosen = heuristic(H200)(layer)
        if fills(layer, chosen, H200):
            continue
        least = estimated_cycles(layer, chosen, H200)
        for each in candidates:
            if fills(layer, each, H200) and len(each.algorithm.work(layer, each.config)) == 1:
                assert estimated_cycles(layer, each, H200) > 1.05 * least, (str(layer), str(each))


def test_few_pixels_and_many_channels_are_split_until_they_fill_the_machine() -> None:
    layers = [conv(2048, 512, 7, 1), conv(512, 2048, 7, 1), conv(1024, 256, 14, 1)]
    for layer in [*layers, conv(256, 1024, 14, 1)]:
        chosen = heuristic(H200)(layer)
        assert fills(layer, chosen, H200)
        (work,) = chosen.algorithm.work(layer, chosen.config)
        assert work.blocks >= 0.9 * 132
    (work,) = chosen.algorithm.work(layers[0], heuristic(H200)(layers[0]).config)
    assert work.tail_bytes > 0  # several blocks sum the channels


def test_a_device_and_its_facts_choose_alike() -> None:
    device = CusimDevice(multiprocessors=H200.multiprocessors)
    by_device = heuristic(device)
    device.close()
    assert [by_device(layer) for layer in LAYERS] == [heuristic(H200)(layer) for layer in LAYERS]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_several_warps_of_every_choice_fit_a_multiprocessor(layer: ConvProblem) -> None:
    for algorithm, config, _ in choices(layer):
        for work in algorithm.work(layer, config):
            assert resident_blocks(work) * work.threads >= 8 * 32, (algorithm, config)


def test_what_a_block_finds_no_shared_memory_for_is_not_chosen() -> None:
    for layer in LAYERS:
        most = max(
            work.shared_bytes
            for algorithm, config, _ in choices(layer)
            for work in algorithm.work(layer, config)
        )
        fewer = choices(layer, most - 1)
        assert 0 < len(fewer) < len(choices(layer, most)) == len(choices(layer))
        chosen = heuristic(Facts(132, most - 1))(layer)
        assert chosen in fewer


def test_clusters_use_whole_numbers_of_a_groups_multiprocessors() -> None:
    """Multiprocessors in use, as counted on an H100: 120 with clusters of 8, 112 with clusters of
    16."""
    assert [usable(132, blocks) for blocks in (1, 2, 8, 16)] == [132, 132, 120, 112]
    assert usable(4, 8) == 3
    assert usable(1, 8) == 1


@pytest.mark.parametrize("split", [2, 4, 8])
def test_a_cluster_is_estimated_to_add_up_sooner_and_to_write_sooner_than_a_workspace(
    split: int,
) -> None:
    problem = replace(conv(512, 512, 7, 3), precision=Precision.FP16)
    algorithm = WarpgroupConv()
    for tile in algorithm.blocks_of(problem):
        one, other = (
            parts(algorithm.work(problem, TileConfig(tile, split, cluster=cluster))[0], H200, False)
            for cluster in (True, False)
        )
        assert 0 < one["split"] < other["split"]
        assert one["outputs"] < other["outputs"]
