"""The cost model."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.device.gpus import GPUS
from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.attention import attention_launch, attention_reads
from kernels.operations.linear import linear_launch, linear_reads
from kernels.operations.product import product_reads
from kernels.operations.reads import NO_READS, BlockReads
from kernels.problems.precision import FLOAT, HALF, Precision
from kernels.tuning.constants import ASSUMED, Constants, microseconds
from kernels.tuning.heuristic import LATENCY, Facts, heuristic
from models.lowering.tape import TapeStep
from models.plan import Plan, build_plan
from models.schedule.branches import After, in_order
from models.schedule.time import (
    GAP_US,
    OTHER_US,
    Cost,
    Estimate,
    Span,
    estimate,
    gaps,
    pays,
    spans,
)
from tests.support.models.engines import network_of
from tests.support.networks import light_network

OVERLAPPED_GAP_US = microseconds(ASSUMED.overlapped_cycles)

FORK: After = (frozenset(), frozenset({0}), frozenset({0}), frozenset({1, 2}))

ESTIMATES = st.lists(
    st.builds(Estimate, st.floats(0, 50), st.floats(0.01, 1)), min_size=4, max_size=4
)


def critical_us(estimates: Sequence[Estimate], after: After, gaps_us: Sequence[float]) -> float:
    """Return the length of the longest path through the steps, each alone on the GPU."""
    alone = [Estimate(each.us, 0.0) for each in estimates]
    return max(span.end_us for span in spans(alone, after, gaps_us))


def test_steps_in_order_take_their_sum_and_the_gaps() -> None:
    steps = [Estimate(2.0), Estimate(3.0, 0.1), Estimate(0.0)]
    expected = [Span(0, 2), Span(2.5, 5.5), Span(6, 6)]
    assert spans(steps, in_order(3), [0.5] * 3) == expected


def test_steps_of_seconds_end_though_their_times_are_not_exact() -> None:
    """At 10 s, the last bit of a float is 2e-9 µs, and the rest of a step may be less than that."""
    for seed in range(5):
        draw = Random(seed)
        steps = [Estimate(2e6 * draw.random()) for _ in range(20)]
        total = sum(step.us for step in steps)
        assert spans(steps, in_order(20), [0.0] * 20)[-1].end_us == pytest.approx(total)


def test_branches_that_fit_the_gpu_together_run_as_if_alone() -> None:
    steps = [Estimate(1.0), Estimate(4.0, 0.5), Estimate(2.0, 0.5), Estimate(1.0)]
    assert spans(steps, FORK, [0.5] * 4) == [Span(0, 1), Span(1.5, 5.5), Span(1.5, 3.5), Span(6, 7)]


def test_branches_that_each_fill_the_gpu_gain_nothing_but_gaps() -> None:
    steps = [Estimate(1.0), Estimate(4.0), Estimate(4.0), Estimate(1.0)]
    assert spans(steps, FORK, [0.0] * 4)[-1] == Span(9, 10)


@given(ESTIMATES, st.floats(0, 2))
def test_side_by_side_is_between_the_critical_path_and_one_after_another(
    steps: list[Estimate], gap_us: float
) -> None:
    gaps_us = [gap_us] * 4
    end = spans(steps, FORK, gaps_us)[-1].end_us
    assert critical_us(steps, FORK, gaps_us) <= end + 1e-6
    assert end <= spans(steps, in_order(4), gaps_us)[-1].end_us + 1e-6


def test_only_launches_that_overlap_have_a_shorter_gap() -> None:
    assert gaps(FORK, overlaps=False) == [GAP_US] * 4
    # The first waits for nothing; the second branch and the join wait for another stream.
    early = [GAP_US, OVERLAPPED_GAP_US, GAP_US, GAP_US]
    assert gaps(FORK, overlaps=True) == early
    measured = Constants(launch_cycles=1980, overlapped_cycles=990, fork_cycles=3960)
    assert gaps(FORK, overlaps=True, constants=measured) == [1.0, 0.5, 2.0, 2.0]
    steps = [Estimate(1.0)] * 3
    chain = in_order(3)
    assert spans(steps, chain, gaps(chain, overlaps=True))[-1].end_us == pytest.approx(
        3 + 2 * OVERLAPPED_GAP_US
    )


def test_the_critical_path_is_the_longest_whatever_fills_the_gpu() -> None:
    steps = [Estimate(1.0), Estimate(4.0), Estimate(2.0), Estimate(1.0)]
    assert critical_us(steps, FORK, [0.5] * 4) == pytest.approx(7.0)


H200 = GPUS["h200"]


def planned(name: str) -> tuple[list[Estimate], Plan]:
    """Return a network's steps for one image on an H200, and its plan."""
    classifier = network_of(name, light_network(name))
    choose = heuristic(Facts(H200.multiprocessors, H200.max_shared_bytes))
    plan = build_plan(
        classifier.rewritten.graph,
        classifier.preprocessing,
        1,
        choose,
        pays=partial(pays, machine=H200),
    )
    return [estimate(step, H200) for step in plan.steps], plan


def test_googlenets_longest_path_takes_at_most_60_percent_of_one_launch_after_another() -> None:
    steps, plan = planned("inception_v1")
    chain = in_order(len(steps))
    one_by_one = spans(steps, chain, gaps(chain, overlaps=False))[-1].end_us
    assert critical_us(steps, plan.after, gaps(plan.after, overlaps=True)) <= 0.6 * one_by_one


def test_launches_that_overlap_leave_resnet_50_a_third_of_its_gaps() -> None:
    _, plan = planned("resnet50")
    before, now = (sum(gaps(plan.after, overlaps=each)[1:]) for each in (False, True))
    assert now <= before / 3


def attention_of(precision: Precision, images: int) -> TapeStep:
    """Return ViT-S/16's attention: 197 tokens, 6 heads of 64 channels."""
    shape = StridedTensor.contiguous((images, 6, 197, 64), precision.stored)
    launch = attention_launch(shape, shape, shape, shape, precision=precision)
    reads = attention_reads(shape, shape, precision, bias=False)
    nbytes = 4 * images * 6 * 197 * 64 * precision.stored.itemsize
    cost = Cost(images * 6 * 197 * 197 * (4 * 64 + 4), nbytes, precision, reads)
    return TapeStep("attention", launch, {}, cost, None)


def us_without(step: TapeStep, **cost: Any) -> float:
    return estimate(replace(step, cost=replace(step.cost, **cost)), H200).us - OTHER_US


def test_products_on_tensor_cores_take_what_their_precision_does() -> None:
    """A multiprocessor multiplies 128 pairs per clock in float, and 16 / 1.6 times as many with
    mma.sync."""
    tiles, cycles = -(-13 * 6 * 800 // 132), {}
    for precision in (Precision.FP32, Precision.TF32X3, Precision.TF32, Precision.FP16):
        step = attention_of(precision, images=800)
        us = us_without(step, reads=NO_READS, bytes=0)
        cycles[precision] = us * 1980 / tiles
    of_a_block = 16 * 197 / (13 * 16) * 197 * (4 * 64 + 4) / 256
    assert cycles[Precision.FP32] == pytest.approx(of_a_block)
    for precision, faster in (
        (Precision.TF32X3, 16 / 6),
        (Precision.TF32, 8),
        (Precision.FP16, 16),
    ):
        assert cycles[precision] == pytest.approx(of_a_block * 1.6 / faster)


def test_exponentials_take_longer_than_products_on_tensor_cores() -> None:
    """A multiprocessor computes 16 exponentials per clock, but 2560 other operations in fp16."""
    blocks = 13 * 6 * 800
    scores = 800 * 6 * 197 * 197
    for precision, others in ((Precision.FP32, 256), (Precision.FP16, 2560)):
        step = attention_of(precision, images=800)
        without, counted = (
            us_without(step, reads=NO_READS, bytes=0, exponentials=each) for each in (0, scores)
        )
        of_busiest = scores / blocks * -(-blocks // 132)
        more = of_busiest * (1 / 16 - 1 / others) / 1980
        assert counted - without == pytest.approx(more)


def test_a_launch_of_few_blocks_takes_as_long_as_one_that_fills_the_gpu() -> None:
    """With 78 or 132 blocks, each has its own multiprocessor; with 156, some share one."""
    step = replace(attention_of(Precision.FP16, 1), cost=Cost(10**9, precision=Precision.FP16))
    alone = {
        blocks: us_without(replace(step, launch=replace(step.launch, grid=(blocks, 1, 1))))
        for blocks in (66, 132, 133)
    }
    assert alone[66] == pytest.approx(2 * alone[132])
    assert alone[133] == pytest.approx(2 * alone[132] * 132 / 133)


def test_what_blocks_read_again_and_wait_for_is_counted() -> None:
    one, many = (attention_of(Precision.FP16, images) for images in (1, 64))
    assert one.cost.reads == BlockReads(2 * (16 + 197) * 128, 2 * 4 / 2)
    waits = 4 * LATENCY
    assert us_without(one) == pytest.approx(waits / 1980)
    read = one.cost.reads.bytes * -(-78 * 64 // 132) / ASSUMED.cache_bytes_per_cycle
    assert us_without(many) == pytest.approx(read / 1980)
    assert read > waits * 7
    assert us_without(many, reads=NO_READS) < us_without(many) / 2


def test_a_linear_layer_of_eight_rows_reads_its_input_as_often_as_its_weights() -> None:
    x, y = Pixels(4096, 4096), Pixels(4096, 4096)
    one, eight = (
        TapeStep(
            "linear",
            linear_launch(n, x, y),
            {},
            Cost(0, 4 * 4096**2, reads=linear_reads(n, x)),
            None,
        )
        for n in (1, 8)
    )
    assert one.cost.reads == BlockReads(4 * (4 + 1) * 4096, 4)
    assert eight.cost.reads == BlockReads(4 * (8 + 8) * 4096, 8)
    assert us_without(one) == pytest.approx(4 * 4096**2 / 4.8e6, rel=0.1)
    assert us_without(eight) > 1.4 * us_without(one)


def test_a_product_waits_for_its_tiles_once_every_32_terms() -> None:
    assert product_reads(64, HALF) == BlockReads(2 * 32 * 64 * 2, 2)
    assert product_reads(65, FLOAT) == BlockReads(2 * 32 * 65 * 4, 3)
