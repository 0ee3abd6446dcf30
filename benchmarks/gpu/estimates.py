"""Compares the cost model's estimates with the measured times of layers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.report import CONVOY
from benchmarks.kernels.suites import MEASURED, batches_of
from benchmarks.rows import Row
from kernels.convolution.algorithms import choices
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.tuning.constants import ASSUMED, CLOCK_HZ, Constants
from kernels.tuning.heuristic import estimated_cycles
from kernels.tuning.micro import Reading
from kernels.tuning.search import by_name

Numbers = NDArray[np.floating[Any]]

LEAST = 8
"""The fewest measured layers that a check needs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Holds a layer's measured time, and the time that the cost model estimates for the same
    algorithm, both in µs."""

    name: str
    estimated_us: float
    measured_us: float


@dataclass(frozen=True, slots=True)
class Check:
    """Holds statistics of how well the estimates predict the measured times."""

    layers: int
    rank_correlation: float  # Spearman's
    median_error: float  # relative to the measured time

    def __str__(self) -> str:
        return (
            f"on {self.layers} layers, the rank correlation is {self.rank_correlation:.2f}, and"
            f" the median error is {self.median_error:.0%}"
        )


def pairs(rows: Iterable[Row], constants: Constants = ASSUMED) -> Iterator[Pair]:
    """Yield the estimated and the measured time for each row that measures Convoy on a layer of the
    suites, with a warm or a cold cache.

    Rows are skipped if their choice no longer exists, or if their GPU is not an H100 or H200.
    """
    problems = _problems()
    for row in rows:
        problem = problems.get(row.get("problem", ""))
        hopper = any(name in row["device"] for name in ("H100", "H200"))
        if problem is None or row.get("side") != CONVOY or not hopper:
            continue
        choice = by_name(choices(problem)).get(row["choice"])
        if choice is not None:
            cycles = estimated_cycles(
                problem, choice, H200, warm=row["cache"] == "warm", constants=constants
            )
            name = f"{row['problem']} {row['cache']}"
            yield Pair(name, 1e6 * cycles / CLOCK_HZ, float(row["p50_us"]))


def check(every: Iterable[Pair]) -> Check:
    """Return how well the estimated times predict the measured times. Raises ValueError if there
    are fewer than LEAST pairs."""
    times = np.array([(pair.estimated_us, pair.measured_us) for pair in every])
    if len(times) < LEAST:
        raise ValueError(f"a check needs at least {LEAST} measured layers, got {len(times)}")
    estimated, measured = times.T
    return Check(
        layers=len(times),
        rank_correlation=rank_correlation(estimated, measured),
        median_error=float(np.median(abs(estimated / measured - 1))),
    )


def rank_correlation(first: Numbers, second: Numbers) -> float:
    """Return Spearman's correlation, which is Pearson's correlation of the ranks. Equal values
    share their mean rank."""
    a, b = map(_centred_ranks, (first, second))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def _centred_ranks(values: Numbers) -> Numbers:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2
    return np.asarray(ranks[inverse] - (len(values) + 1) / 2)


def readings(rows: Iterable[Row]) -> list[Reading]:
    """Return the measurements in the rows to which the constants of the cost model are fitted."""
    return [
        Reading(row["reading"], row["conditions"], float(row["p50_us"]))
        for row in rows
        if "reading" in row
    ]


@cache
def _problems() -> dict[str, ConvProblem]:
    return {
        str(problem): problem
        for suite, layers in MEASURED.items()
        for layer in layers
        for n in batches_of(suite)
        for problem in (layer.problem.with_batch(n),)
    }
