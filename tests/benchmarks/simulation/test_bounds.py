"""The bounds compared with brute force, with each other and with the policy."""

from itertools import combinations
from math import inf
from random import Random

import numpy as np
import pytest

from benchmarks.simulation import bounds, gaps
from benchmarks.simulation.schedulers import AtOnce, Planned
from benchmarks.simulation.server import Workload, simulate
from benchmarks.simulation.workloads import PROFILES, capacity, poisson

ONE_TO_FOUR = (1.0, 1.5, 2.0, 2.5)


def mean_of(sizes: tuple[int, ...], seconds: tuple[float, ...], rate: float) -> float:
    """Return the mean latency of arrivals at a rate, simulated without noise."""
    scheduler = Planned(seconds, rate)
    scheduler._sizes = sizes
    workload = poisson(rate, 20_000, 0)
    return float(np.mean(simulate(scheduler, seconds, workload, noise=0.0).latencies))


def test_without_company_the_least_mean_is_that_of_a_queue_of_one_server() -> None:
    # M/D/1 (Pollaczek and Khinchine): L + rate L^2 / (2 (1 - rate L)).
    least, sizes = bounds.poisson((1.0,), 0.5)
    assert least == pytest.approx(1.5, rel=1e-4)
    assert sizes[:2] == (0, 1)


def test_the_plan_has_the_mean_that_it_promises_and_no_changed_one_has_less() -> None:
    rate = 0.7 * capacity(ONE_TO_FOUR)
    least, sizes = bounds.poisson(ONE_TO_FOUR, rate)
    simulated = mean_of(sizes, ONE_TO_FOUR, rate)
    assert simulated == pytest.approx(least, rel=0.03)
    for waiting in (2, 3, 4, 6):
        changed = list(sizes)
        changed[waiting] = 1 if sizes[waiting] > 1 else min(4, waiting)
        assert mean_of(tuple(changed), ONE_TO_FOUR, rate) > simulated * 0.999


def test_one_client_is_answered_as_soon_as_it_asks() -> None:
    assert bounds.closed_random((1.0,), 1, 1.0) == pytest.approx(0.5)
    assert bounds.closed_steady((1.0,), 1, 0.4, 0.6) == pytest.approx(1 / 1.5, rel=0.05)


def test_no_scheduler_exceeds_the_bound_of_a_closed_loop() -> None:
    seconds = PROFILES["steps"]
    for clients in (3, 6, 8):
        most = bounds.closed_random(seconds, clients, seconds[0])
        workload = Workload(
            clients=clients, think=lambda draw: seconds[0] * draw.expovariate(1), requests=6000
        )
        outcome = simulate(AtOnce(8), seconds, workload, noise=0.0)
        assert 0.5 * most < len(outcome.latencies) / outcome.ended < 1.02 * most


@pytest.mark.parametrize("seed", range(20))
def test_a_clairvoyant_answers_as_many_as_the_best_of_all_ways(seed: int) -> None:
    draw = Random(seed)
    arrivals = sorted(draw.uniform(0, 5) for _ in range(7))
    timeout_s = draw.uniform(1.2, 3)
    answered = bounds.clairvoyant(arrivals, timeout_s, ONE_TO_FOUR)
    assert answered == max(
        kept
        for kept in range(8)
        if any(feasible(some, timeout_s) for some in combinations(arrivals, kept))
    )


def feasible(arrivals: tuple[float, ...], timeout_s: float, free: float = -inf) -> bool:
    """Return whether all can be answered in time with some division into batches."""
    if not arrivals:
        return True
    for size, took in enumerate(ONE_TO_FOUR[: len(arrivals)], 1):
        ends = max(free, arrivals[size - 1]) + took
        if ends <= arrivals[0] + timeout_s and feasible(arrivals[size:], timeout_s, ends):
            return True
    return False


# By profile and load, the most by which the mean and the p99 may exceed those of the plan, on
# average over so many seeds: where batches are rarely full, the p99 of one is 2 to 7% above.
POISSON = {
    ("flat", 0.7): (0.01, 0.05, 1),
    ("flat", 0.9): (0.01, 0.05, 1),
    ("linear", 0.7): (0.025, 0.05, 1),
    ("linear", 0.8): (0.04, 0.05, 8),
    ("steps", 0.8): (0.04, 0.05, 1),
    ("pairs", 0.8): (0.04, 0.05, 1),
}


@pytest.mark.parametrize(("profile", "load"), POISSON)
def test_the_policy_is_close_to_the_least_mean_of_poisson_arrivals(
    profile: str, load: float
) -> None:
    *most, seeds = POISSON[profile, load]
    found = [
        [gap.excess for gap in gaps.poisson_gaps(profile, load, 8000, seed)]
        for seed in range(seeds)
    ]
    assert (np.mean(found, axis=0) <= most).all(), found


@pytest.mark.parametrize("profile", ["flat", "linear", "steps", "pairs"])
@pytest.mark.parametrize("clients", [4, 6, 8, 16])
def test_the_policy_is_within_two_percent_of_the_most_throughput_of_steady_clients(
    profile: str, clients: int
) -> None:
    assert gaps.closed_gap(profile, "jitter 0.1", clients, 3000).excess <= 0.02


@pytest.mark.parametrize("profile", ["flat", "linear", "steps", "pairs"])
@pytest.mark.parametrize("workload", gaps.RANDOM)
def test_of_two_clients_that_take_their_time_the_second_is_waited_for(
    profile: str, workload: str
) -> None:
    assert gaps.closed_gap(profile, workload, 2, 3000).excess <= 0.08


# By profile and timeout in L(8), the least mean share of the clairvoyant's answers.
IN_TIME = {
    ("flat", 1.5): 0.945,
    ("linear", 1.5): 0.99,
    ("steps", 1.5): 0.975,
    ("pairs", 1.5): 0.965,
    **{(profile, 3.0): 0.99 for profile in ("flat", "linear", "steps", "pairs")},
}


@pytest.mark.parametrize(("profile", "timeout"), IN_TIME)
def test_the_policy_answers_nearly_as_many_in_time_as_a_clairvoyant(
    profile: str, timeout: float
) -> None:
    found = [gaps.deadline_gap(profile, timeout, load, 1500) for load in gaps.OVERLOADS]
    assert np.mean([1 / gap.ratio for gap in found]) >= IN_TIME[profile, timeout], found
