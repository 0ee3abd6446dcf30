"""Compares Convoy's measured times with those of other libraries and with the goals, for each layer
and each suite of layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, fsum, log

from benchmarks.kernels.suites import BATCHES, MEASURED, NAMED, PAPERS_BATCHES, Layer
from benchmarks.rows import Row

CONVOY = "convoy"
"""The side with which the others are compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds two measurements of one layer at one N: Convoy's, and the fastest other library's."""

    layer: Layer
    n: int
    ours: Row
    best: Row

    @property
    def speedup(self) -> float:
        """Return the other library's median time divided by Convoy's median time."""
        return float(self.best["p50_us"] / self.ours["p50_us"])

    @property
    def of_peak(self) -> float:
        """Return the operations of the direct algorithm per second of Convoy's time, divided by the
        GPU's fp32 peak. With Winograd, the result may exceed 1."""
        flops = _flops(self.layer, self.n) / self.ours["p50_us"] * 1e6
        return float(flops / self.ours["peak_flops"])


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics about Convoy's speed-ups on the measured layers of a suite, for one state of the
    L2 cache."""

    measured: int
    layers: int
    geometric_mean: float  # of the speed-ups
    least: float
    greatest: float
    won: float  # share of the layers in which Convoy is faster
    mean_of_won: float  # of the speed-ups in these layers; 1 without such layers
    of_peak: float  # all operations by the time of all layers, relative to the peak
    seconds: float  # Convoy's time for all layers
    best_seconds: float  # the time of the fastest other sides


def compare(rows: Iterable[Row], layers: Sequence[Layer], n: int, cache: str) -> list[Comparison]:
    """Return a comparison for each layer for which both Convoy and another library were measured.
    The latest measurements are used."""
    sides: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == "measurement" and row["cache"] == cache:
            sides.setdefault(row["problem"], {})[row["side"]] = row
    found = []
    for layer in layers:
        by_side = dict(sides.get(str(layer.problem.with_batch(n)), {}))
        ours = by_side.pop(CONVOY, None)
        if ours is not None and by_side:
            best = min(by_side.values(), key=lambda row: float(row["p50_us"]))
            found.append(Comparison(layer, n, ours, best))
    return found


def summarise(comparisons: Sequence[Comparison], layers: int) -> Summary:
    """Compute the statistics of a suite that has `layers` layers. There must be at least one
    comparison."""
    speedups = [comparison.speedup for comparison in comparisons]
    won = [speedup for speedup in speedups if speedup > 1]
    us, best_us = (
        fsum(each.layer.count * side["p50_us"] for each, side in sides)
        for sides in (
            [(comparison, comparison.ours) for comparison in comparisons],
            [(comparison, comparison.best) for comparison in comparisons],
        )
    )
    flops = fsum(
        comparison.layer.count * _flops(comparison.layer, comparison.n)
        for comparison in comparisons
    )
    return Summary(
        measured=len(comparisons),
        layers=layers,
        geometric_mean=exp(fsum(map(log, speedups)) / len(speedups)),
        least=min(speedups),
        greatest=max(speedups),
        won=len(won) / len(speedups),
        mean_of_won=fsum(won) / len(won) if won else 1.0,
        of_peak=1e6 * flops / us / comparisons[0].ours["peak_flops"],
        seconds=us / 1e6,
        best_seconds=best_us / 1e6,
    )


def _flops(layer: Layer, n: int) -> int:
    """Return the number of operations of the direct algorithm. A multiply-add counts as two
    operations."""
    return 2 * layer.problem.with_batch(n).macs


MEASURES = {
    "of_peak": "effective TFLOPS over the device's peak",
    "geometric_mean": "geometric mean of the speed-ups",
    "won": "share of the layers that are faster",
    "mean_of_won": "mean speed-up of those",
    "least": "least speed-up of a layer",
    "greatest": "greatest speed-up of a layer",
}
"""The figures of a Summary that a goal may limit, by field."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A value that a statistic of a suite should reach. `kernel` restricts the goal to layers with
    this filter size, and `layer` to one layer."""

    suite: str
    batches: tuple[int, ...]  # values of N
    measure: str  # one of MEASURES
    at_least: float
    kernel: int | None = None  # R = S
    layer: str | None = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers to which the goal applies."""
        return tuple(
            layer
            for layer in MEASURED[self.suite]
            if self.kernel in (None, layer.problem.window.kernel[0])
            and self.layer in (None, layer.name)
        )

    def __str__(self) -> str:
        only = f" {self.kernel}×{self.kernel}" if self.kernel else f" {self.layer or ''}".rstrip()
        every = ", ".join(map(str, self.batches))
        return f"{self.suite}{only} at N = {every}, {MEASURES[self.measure]}"


GOALS = (
    # Lavin & Gray's table 5 has 1.01 and 1.36 times the peak of their Titan X, 6.96 TFLOPS.
    Goal("vgg-e", (1,), "of_peak", 1.0),
    Goal("vgg-e", (8,), "of_peak", 1.5),
    Goal("cuconv", (1,), "geometric_mean", 1.5),
    Goal("cuconv", (8,), "geometric_mean", 1.3),
    Goal("cuconv", (1,), "won", 0.9),
    # The speed-ups that cuConv reached on a V100.
    Goal("cuconv", (1,), "geometric_mean", 1.23, kernel=1),
    Goal("cuconv", (1,), "geometric_mean", 1.36, kernel=5),
    Goal("cuconv", (1,), "greatest", 2.29, kernel=1),
    Goal("cuconv", (1,), "greatest", 1.97, kernel=5),
    Goal("cuconv", PAPERS_BATCHES["cuconv"], "won", 0.0831),
    Goal("cuconv", PAPERS_BATCHES["cuconv"], "mean_of_won", 1.46),
    *(Goal("c3d", (n,), "least", 1.5) for n in BATCHES),
    *(
        Goal(named.suite, (named.n,), "geometric_mean", named.speedup, layer=named.name)
        for named in NAMED
    ),
)


def reached(rows: Sequence[Row], goal: Goal, cache: str) -> float | None:
    """Return the measured value of the goal's statistic, or None if a layer of the goal is not
    measured yet."""
    comparisons = [each for n in goal.batches for each in compare(rows, goal.layers, n, cache)]
    wanted = len(goal.layers) * len(goal.batches)
    if len(comparisons) < wanted:
        return None
    value: float = getattr(summarise(comparisons, wanted), goal.measure)
    return value
