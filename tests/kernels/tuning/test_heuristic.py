"""What is run where nothing has been measured."""

from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.convolution.algorithms import Algorithm, ConvChoice, choices
from kernels.convolution.depthwise import DepthwiseConfig
from kernels.convolution.work import Work
from kernels.problems.conv import ConvProblem
from kernels.problems.window import Window
from kernels.tuning.heuristic import (
    H200,
    Facts,
    choose,
    estimated_cycles,
    heuristic,
    resident_blocks,
)
from tests.cusim.device import CusimDevice
from tests.support.kernels.windows import conv_problem, window, windows


def conv(c: int, k: int, size: int, r: int, stride: int = 1) -> ConvProblem:
    """A layer of the usual networks: square, padded by half its filter."""
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
    algorithm, config = heuristic(H200)(problem)
    longest = max(algorithm.work(problem, config), key=lambda work: work.blocks * work.instructions)
    assert longest.blocks >= 0.8 * H200.multiprocessors
    assert longest.blocks * longest.threads >= 3 * 32 * H200.multiprocessors


def test_a_small_machine_does_not_split_what_fills_it() -> None:
    for layer in LAYERS[1:5]:
        algorithm, config = heuristic(Facts(multiprocessors=2))(layer)
        assert all(work.tail_bytes == 0 for work in algorithm.work(layer, config))


def test_small_images_are_coalesced_and_larger_ones_winograd_or_a_plain_matrix_product() -> None:
    def kind(layer: ConvProblem) -> str:
        return heuristic(H200)(layer).algorithm.name.split()[0]

    def kinds(n: int) -> list[str]:
        return [kind(layer.with_batch(n)) for layer in LAYERS]

    assert kinds(1) == ["direct", *["winograd"] * 3, *["coalesced"] * 4]
    assert kinds(8) == ["direct", *["winograd"] * 4, *["gemm"] * 3]
    # Those with which the paper's authors gain most, and one with which they lose.
    assert kind(conv(832, 32, 7, 1)) == kind(conv(192, 384, 7, 3)) == "coalesced"
    assert kind(conv(48, 128, 7, 5)) == "coalesced"
    assert kind(conv(384, 384, 13, 3)) == "winograd"
    few = conv(8, 8, 8, 3)
    assert [kind(few.with_batch(n)) for n in (1, 2, 8)] == ["direct"] * 3


def test_several_launches_must_look_clearly_better_than_one() -> None:
    @dataclass(frozen=True)
    class Taking:
        works: tuple[Work, ...]

        def work(self, problem: ConvProblem, config: object) -> tuple[Work, ...]:
            return self.works

    def cycles(*works: Work) -> float:
        choice = ConvChoice(cast(Algorithm[None], Taking(works)), None)
        return estimated_cycles(LAYERS[0], choice, H200)

    one = Work(132, 256, 64, 0, instructions=1e9, bytes=0, rounds=0)  # so that starts are nothing
    half = replace(one, instructions=0.5e9)
    assert cycles(half, half) > 1.15 * cycles(one)
    assert cycles(half) < cycles(one) < cycles(one, half)


def test_depthwise_has_its_own_kernel_and_runs_shorten_with_the_image() -> None:
    def run(size: int, c: int) -> int:
        seen = window((size, size), (3, 3), pads=(1,) * 4)
        config = heuristic(H200)(conv_problem(1, c, c, seen, c)).config
        assert isinstance(config, DepthwiseConfig)
        return config.run

    assert run(112, 64) == 4
    assert run(7, 96) == 1


@given(windows(), st.sampled_from((1, 2, 8)), st.integers(1, 8), st.integers(1, 200))
def test_the_cheapest_candidate_is_chosen(
    seen: Window, groups: int, n: int, multiprocessors: int
) -> None:
    problem = conv_problem(n, 8, 16, seen, groups)
    candidates, facts = choices(problem), Facts(multiprocessors)
    chosen = choose(problem, candidates, facts)
    costs = [estimated_cycles(problem, each, facts) for each in candidates]
    assert chosen == candidates[costs.index(min(costs))]
    assert min(costs) > 0
    assert choose(problem, [chosen], facts) == chosen


def test_a_device_and_its_facts_choose_alike() -> None:
    device = CusimDevice(multiprocessors=H200.multiprocessors)
    by_device = heuristic(device)
    device.close()
    assert [by_device(layer) for layer in LAYERS] == [heuristic(H200)(layer) for layer in LAYERS]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_several_warps_of_every_choice_fit_a_multiprocessor(layer: ConvProblem) -> None:
    for algorithm, config in choices(layer):
        for work in algorithm.work(layer, config):
            assert resident_blocks(work) * work.threads >= 8 * 32, (algorithm, config)


def test_what_a_block_finds_no_shared_memory_for_is_not_chosen() -> None:
    for layer in LAYERS:
        most = max(
            work.shared_bytes
            for algorithm, config in choices(layer)
            for work in algorithm.work(layer, config)
        )
        fewer = choices(layer, most - 1)
        assert 0 < len(fewer) < len(choices(layer, most)) == len(choices(layer))
        chosen = heuristic(Facts(132, most - 1))(layer)
        assert chosen in fewer
