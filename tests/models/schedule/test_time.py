"""The model of time."""

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.device.gpus import GPUS
from kernels.tuning.constants import ASSUMED, Constants, microseconds
from kernels.tuning.heuristic import Facts, heuristic
from models.plan import Plan, build_plan
from models.schedule.branches import After, in_order
from models.schedule.time import (
    GAP_US,
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
    """The longest way through the steps, each alone on the GPU."""
    alone = [Estimate(each.us, 0.0) for each in estimates]
    return max(span.end_us for span in spans(alone, after, gaps_us))


def test_steps_in_order_take_their_sum_and_the_gaps() -> None:
    steps = [Estimate(2.0), Estimate(3.0, 0.1), Estimate(0.0)]
    expected = [Span(0, 2), Span(2.5, 5.5), Span(6, 6)]
    assert spans(steps, in_order(3), [0.5] * 3) == expected


def test_steps_of_seconds_end_though_their_times_are_not_exact() -> None:
    """At 10 s a float's last bit is 2e-9 µs: what is left of a step may be less than that."""
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
    """A network's steps for one image on an H200, and its plan."""
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
