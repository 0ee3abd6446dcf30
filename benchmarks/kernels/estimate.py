"""What the cost model expects of the suites on an H200: estimates, beside what is to be reached.

The model (kernels/tuning/heuristic.py) takes the gap before a launch, weights from memory and x
from the cache. It knows nothing of cuDNN: in place of a comparison stands how much faster the
choice is than the best direct or matrix product convolution, by the same model. Nothing here was
measured, and every row says so.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, fsum, log
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kernels.report import GOALS, Measure
from benchmarks.kernels.suites import BATCHES, SUITES, Layer
from benchmarks.rows import Row
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.tuning.constants import CLOCK_HZ
from kernels.tuning.heuristic import choose, estimated_cycles

PEAK_FLOPS = H200.peak_flops

DEVICE = "NVIDIA H200, estimated"

PLAIN = ("direct", "gemm")
"""Algorithms that neither transform nor skip anything."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a layer for n images."""

    layer: Layer
    n: int
    choice: str
    us: float
    plain_us: float  # of the best plain algorithm

    @property
    def flops(self) -> int:
        """Of the direct algorithm."""
        return 2 * self.layer.problem.with_batch(self.n).macs

    @property
    def over_plain(self) -> float:
        """How many times as fast as the best plain algorithm."""
        return self.plain_us / self.us


@cache
def _best(problem: ConvProblem) -> tuple[str, float, float]:
    def us(choice: ConvChoice) -> float:
        return 1e6 * estimated_cycles(problem, choice, H200) / CLOCK_HZ

    every = choices(problem, H200.max_shared_bytes)
    best = choose(problem, every, H200)
    plain = choose(problem, [each for each in every if each.algorithm.name in PLAIN], H200)
    return str(best), us(best), us(plain)


def estimate(layer: Layer, n: int) -> Estimate:
    """Return the heuristic's choice, and what the model expects of it."""
    return Estimate(layer, n, *_best(layer.problem.with_batch(n)))


def of_peak(estimates: Sequence[Estimate]) -> float:
    """Effective operations a second over the peak, each layer as often as it occurs."""
    flops = fsum(each.layer.count * each.flops for each in estimates)
    us = fsum(each.layer.count * each.us for each in estimates)
    return 1e6 * flops / us / PEAK_FLOPS


def mean_over_plain(estimates: Sequence[Estimate]) -> float:
    """Geometric."""
    return exp(fsum(log(each.over_plain) for each in estimates) / len(estimates))


def row_of(suite: str, estimate: Estimate, at: str) -> Row:
    """As it is written down."""
    return {
        "kind": "estimate",
        "commit": at,
        "device": DEVICE,
        "suite": suite,
        "layer": estimate.layer.name,
        "n": estimate.n,
        "choice": estimate.choice,
        "us": round(estimate.us, 2),
        "of_peak": round(of_peak([estimate]), 3),
        "over_plain": round(estimate.over_plain, 3),
    }


def run(out: Path, at: str, console: Console) -> None:
    """Estimate, show, and write OUT/estimates.jsonl anew."""
    every = {
        (suite, n): [estimate(layer, n) for layer in layers]
        for suite, layers in SUITES.items()
        for n in BATCHES
    }
    rows = [
        row_of(suite, estimate, at)
        for (suite, _), estimates in every.items()
        for estimate in estimates
    ]
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (out / "estimates.jsonl").write_text(text)
    for (suite, n), estimates in every.items():
        console.print(_table(suite, n, estimates))
    for goal in GOALS:
        estimates = [estimate(layer, goal.n) for layer in goal.layers]
        if goal.measure is Measure.OF_PEAK:
            expected = f"{of_peak(estimates):.2f} estimated"
        else:
            expected = (
                f"no estimate, the model does not know cuDNN;"
                f" {mean_over_plain(estimates):.2f} over plain convolution"
            )
        console.print(f"{goal}: {expected}, to reach: {goal.at_least}", soft_wrap=True)


def _table(suite: str, n: int, estimates: Sequence[Estimate]) -> Table:
    table = Table(
        title=f"ESTIMATED, not measured: {suite}, N = {n}, on an H200",
        title_justify="left",
        show_footer=True,
    )
    columns = (
        ("", ""),
        ("choice", ""),
        ("µs", f"{fsum(each.layer.count * each.us for each in estimates):.1f}"),
        ("of peak", f"{of_peak(estimates):.0%}"),
        ("over plain", f"{mean_over_plain(estimates):.2f}"),
    )
    for heading, footer in columns:
        left = heading in ("", "choice")
        table.add_column(heading, footer=footer, justify="left" if left else "right")
    for each in estimates:
        times = f" ×{each.layer.count}" if each.layer.count > 1 else ""
        table.add_row(
            each.layer.name + times,
            each.choice,
            f"{each.us:.1f}",
            f"{of_peak([each]):.0%}",
            f"{each.over_plain:.2f}",
        )
    return table
