"""Compares one scheduler with others at points of a sweep, and defines what counts as a success.

At a point without deadlines three things count: p50, p99 and throughput. (p50 is the mean of the
middle fifth: with clients in two groups the median lies in the gap between them, and jumps.) With
deadlines one thing counts, goodput: the share of arrivals that are answered in time.

A score over another scheduler is the geometric mean of the ratios, above 1 where ours is better.
**Ours is beaten by more than 5%** at a point if its score over any other is below 0.95. **It wins
over the sweep** if for each other the geometric mean of the scores over all points is above 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from benchmarks.simulation.schedulers import CONVOY, SCHEDULERS
from benchmarks.simulation.server import simulate
from benchmarks.simulation.workloads import Point

BEATEN = 0.95

# Not counted at the start of each run, while schedulers learn.
_WARM_UP = 0.05


@dataclass(frozen=True)
class Result:
    """Holds the results of one scheduler at one point, over all seeds."""

    p50_ms: float
    p99_ms: float
    throughput: float  # answers in time, a second
    goodput: float  # answers in time, of all arrivals
    batch: float  # mean size


def run(point: Point, scheduler: str, requests: int, seeds: Sequence[int]) -> Result:
    """Simulate `requests` requests for each seed, and return the results."""
    latencies: list[np.ndarray] = []
    answered = offered = 0
    seconds = 0.0
    sizes: list[int] = []
    objective = min(point.timeout_s, 2 * point.seconds[-1])
    for seed in seeds:
        outcome = simulate(
            SCHEDULERS[scheduler](point.seconds, objective, seed, point.engines),
            point.seconds,
            point.requests(requests, seed),
            seed=seed,
            engines=point.engines,
        )
        latencies.append(np.array(outcome.latencies[int(_WARM_UP * len(outcome.latencies)) :]))
        answered += len(outcome.latencies)
        offered += outcome.offered
        seconds += outcome.ended
        sizes += outcome.sizes
    ordered = np.sort(np.concatenate(latencies))
    middle = ordered[int(0.4 * len(ordered)) : max(1, int(0.6 * len(ordered)))]
    return Result(
        p50_ms=1e3 * float(middle.mean()) if len(middle) else float("inf"),
        p99_ms=1e3 * float(np.quantile(ordered, 0.99)) if len(ordered) else float("inf"),
        throughput=answered / seconds,
        goodput=answered / offered,
        batch=float(np.mean(sizes)) if sizes else 0.0,
    )


def ratios(point: Point, ours: Result, other: Result) -> Mapping[str, float]:
    """Return the ratio of each figure that counts at the point, above 1 if ours is better."""
    if np.isfinite(point.timeout):
        # None in time counts as one in ten thousand.
        return {"goodput": max(ours.goodput, 1e-4) / max(other.goodput, 1e-4)}
    return {
        "p50": other.p50_ms / ours.p50_ms,
        "p99": other.p99_ms / ours.p99_ms,
        "throughput": ours.throughput / other.throughput,
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


@dataclass(frozen=True)
class Comparison:
    """Holds the results of all schedulers at one point."""

    point: Point
    results: Mapping[str, Result]

    def scores(self) -> Mapping[str, float]:
        """Return our scheduler's score relative to each other scheduler."""
        return {
            name: geometric_mean(ratios(self.point, self.results[CONVOY], result).values())
            for name, result in self.results.items()
            if name != CONVOY
        }

    def beaten_by(self) -> Mapping[str, float]:
        """Return the schedulers that beat ours by more than 5%, with their scores."""
        return {name: score for name, score in self.scores().items() if score < BEATEN}

    def trades(self) -> Mapping[str, tuple[str, float]]:
        """Return the figures in which ours is over 5% worse than the best: {measure: (whose,
        ratio)}."""
        worst: dict[str, tuple[str, float]] = {}
        for name, result in self.results.items():
            if name == CONVOY:
                continue
            for what, ratio in ratios(self.point, self.results[CONVOY], result).items():
                if ratio < BEATEN and ratio < worst.get(what, ("", 1.0))[1]:
                    worst[what] = (name, ratio)
        return worst


def compare(point: Point, requests: int, seeds: Sequence[int]) -> Comparison:
    """Return the comparison of all schedulers at one point, with the same arrivals."""
    return Comparison(point, {name: run(point, name, requests, seeds) for name in SCHEDULERS})


def summary(comparisons: Sequence[Comparison]) -> Mapping[str, float]:
    """Return the geometric mean of the scores over each other scheduler."""
    return {
        name: geometric_mean(comparison.scores()[name] for comparison in comparisons)
        for name in SCHEDULERS
        if name != CONVOY
    }
