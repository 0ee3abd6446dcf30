"""Measures how far Convoy's batching policy is from the best result that any policy for one engine
could reach (the bound), for many workloads and loads.

L(n) is the time that a batch of n images takes. The bound is computed from the exact L(n). The
policy knows L(n) exactly only in the workloads with deadlines; in the other workloads, it measures
L(n). Results: docs/decisions/distance-from-the-optimum.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from benchmarks.simulation.bounds import clairvoyant, closed_random, closed_steady
from benchmarks.simulation.schedulers import Convoy, Planned, measured
from benchmarks.simulation.server import Outcome, Scheduler, Workload, simulate
from benchmarks.simulation.workloads import PROFILES, capacity, poisson
from service.batching.latency import Latency

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
OVERLOADS = (0.5, 0.8, 1.0, 1.2, 1.5)
CLIENTS = (2, 4, 6, 8, 12, 16, 32)

# Think times of clients. Steady: the mean in units of L(1), and the share by which it varies.
# Random: the mean of exponential times in units of L(1).
STEADY = {"steady 0.1": (0.1, 0.001), "jitter 0.1": (0.1, 0.2), "jitter 0.4": (0.4, 0.2)}
RANDOM = {"random 0.3": 0.3, "random 2": 2.0}

# In units of L(max_batch).
TIMEOUTS = (1.5, 3.0)

_WARM_UP = 0.05


@dataclass(frozen=True)
class Gap:
    """The policy's result divided by the bound, for one workload and load."""

    profile: str
    workload: str
    load: float  # a share of the capacity, or the number of clients
    measure: str  # mean, p99, throughput, goodput
    ratio: float  # above 1 if the policy is worse than the bound

    @property
    def excess(self) -> float:
        """Return how much worse the policy is than the bound, as a fraction of the bound."""
        return self.ratio - 1


def poisson_gaps(profile: str, load: float, requests: int, seed: int = 0) -> list[Gap]:
    """Compare the policy's mean and p99 latency with the mean and p99 of the optimal plan, which
    has the lowest possible mean latency. Arrivals are Poisson."""
    seconds = PROFILES[profile]
    rate = load * capacity(seconds)
    workload = poisson(rate, requests, seed)
    ours, best = (
        _latencies(simulate(scheduler, seconds, workload, seed=seed))
        for scheduler in (_convoy(seconds, seed), Planned(seconds, rate))
    )
    means, tails = ours.mean() / best.mean(), np.quantile(ours, 0.99) / np.quantile(best, 0.99)
    return [
        Gap(profile, "Poisson", load, "mean", float(means)),
        Gap(profile, "Poisson", load, "p99", float(tails)),
    ]


def closed_gap(profile: str, workload: str, clients: int, requests: int, seed: int = 0) -> Gap:
    """Compare the policy's throughput in a closed loop with the highest possible throughput."""
    seconds = PROFILES[profile]
    if workload in STEADY:
        mean, off = STEADY[workload]
        least_s, most_s = (mean * (1 + sign * off) * seconds[0] for sign in (-1, 1))
        bound = closed_steady(seconds, clients, least_s, most_s)

        def think(draw: Random) -> float:
            return draw.uniform(least_s, most_s)
    else:
        mean_s = RANDOM[workload] * seconds[0]
        bound = closed_random(seconds, clients, mean_s)

        def think(draw: Random) -> float:
            return mean_s * draw.expovariate(1)

    offered = Workload(clients=clients, think=think, requests=requests)
    outcome = simulate(_convoy(seconds, seed), seconds, offered, seed=seed)
    return Gap(
        profile, workload, clients, "throughput", bound * outcome.ended / len(outcome.latencies)
    )


def deadline_gap(profile: str, timeout: float, load: float, requests: int, seed: int = 0) -> Gap:
    """Return how many answers meet their deadlines with the policy, and how many could meet them if
    all arrivals were known in advance."""
    seconds = PROFILES[profile]
    timeout_s = timeout * seconds[-1]
    workload = poisson(load * capacity(seconds), requests, seed, timeout_s)
    scheduler = Convoy(Latency(tuple(seconds)))
    answered = len(simulate(scheduler, seconds, workload, seed=seed, noise=0.0).latencies)
    moments = [item.arrived for item in workload.arrivals]
    most = clairvoyant(moments, timeout_s, seconds)
    return Gap(profile, f"deadline {timeout:g} L(8)", load, "goodput", most / max(1, answered))


def every(requests: int) -> Iterator[Gap]:
    """Yield the policy's distance from the bound, as a Gap, for each batch-time profile, workload
    and load. The profile "short" is simulated only with Poisson arrivals."""
    for profile in PROFILES:
        for load in LOADS:
            yield from poisson_gaps(profile, load, requests)
        if profile == "short":
            continue
        for workload in (*STEADY, *RANDOM):
            for clients in CLIENTS:
                yield closed_gap(profile, workload, clients, requests // 2)
        for timeout in TIMEOUTS:
            for load in OVERLOADS:
                yield deadline_gap(profile, timeout, load, min(requests, 1500))


def _convoy(seconds: Sequence[float], seed: int) -> Scheduler:
    return Convoy(measured(seconds, seed))


def _latencies(outcome: Outcome) -> np.ndarray:
    return np.array(outcome.latencies[int(_WARM_UP * len(outcome.latencies)) :])
