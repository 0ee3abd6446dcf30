"""Reads Convoy's measurements of the papers' convolutions on a GPU, or reports that they are
missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.gpu.report import of_kind, of_last, rows_of
from benchmarks.gpu.units import LAYER
from benchmarks.kernels.report import CONVOY, Comparison, Goal, compare, reached, summarise
from benchmarks.kernels.suites import CUCONV, MEASURED, NAMED, PAPERS_BATCHES, Layer
from benchmarks.papers.result import Cells, Result, Status
from benchmarks.rows import RESULTS, Row, read
from kernels.problems.conv import ConvProblem

WAITS = "waits"
OTHERWISE = "on another GPU, compared with newer libraries"


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds a number that was measured with Convoy, as text (`ours`), and its ratio to the paper's
    number (`over`).

    If the ratio is at least 1, Convoy's number is at least as good as the paper's. `waiting` lists
    the values of N that are not measured yet. `why` explains a ratio below 1.
    """

    ours: str
    over: float
    waiting: tuple[int, ...] = ()
    why: str = OTHERWISE


Read = Callable[[Sequence[Row]], Reading | None]
"""Returns a reading from all recorded rows of layers, or None if a needed row is missing."""

Measured = Mapping[int, Sequence[Comparison]]
"""For each N at which all layers are measured, the comparisons of all layers."""


def run(only: str) -> str:
    """Return the command that makes the GPU measurements whose names match the regular expression
    `only`."""
    return f'python -m benchmarks.gpu run --only "{only}"'


@cache
def _rows() -> list[Row]:
    lines = read(RESULTS / "gpu.jsonl")
    return of_kind(rows_of(of_last(lines)), LAYER) if lines else []


def on_gpu(where: str, what: str, theirs: str, only: str, read: Read) -> Result:
    """Return a row of docs/papers.md for a result that needs a GPU. The row has Convoy's number if
    `read` finds it in the recorded measurements."""
    reading = read(_rows())
    if reading is None:
        return Result(where, what, theirs, WAITS, Status.NEEDS_GPU, run(only))
    why = reading.why
    if reading.waiting:
        why = f"N = {', '.join(map(str, reading.waiting))} wait"
    elif reading.over >= 1:
        return Result(where, what, theirs, reading.ours, Status.BETTER, run(only))
    return Result(where, what, theirs, reading.ours, Status.IN_PART, run(only), why)


def by_batch(
    layers: Sequence[Layer],
    batches: Sequence[int],
    say: Callable[[Measured], tuple[str, float]],
    sides: Sequence[str] = (),
) -> Read:
    """Return a function that reads recorded measurements, and compares Convoy with the fastest
    other library.

    `say` receives these comparisons for each N at which all layers are measured, and returns a text
    and a ratio for the Reading. If `sides` are given, Convoy is compared only with these libraries.
    """

    def reading(rows: Sequence[Row]) -> Reading | None:
        kept = [row for row in rows if not sides or row["side"] in (CONVOY, *sides)]
        every = {n: compare(kept, layers, n, "warm") for n in batches}
        found = {n: pairs for n, pairs in every.items() if len(pairs) == len(layers)}
        if not found:
            return None
        return Reading(*say(found), tuple(n for n in batches if n not in found))

    return reading


def of_goal(where: str, what: str, theirs: str, only: str, goal: Goal) -> Result:
    """Return a row of docs/papers.md that compares the measured value of a goal with the goal."""

    def say(found: Measured) -> tuple[str, float]:
        value = reached(_rows(), replace(goal, batches=tuple(found)), "warm")
        assert value is not None  # all layers are measured at every N in `found`
        return f"{value:.2f}", value / goal.at_least

    return on_gpu(where, what, theirs, only, by_batch(goal.layers, goal.batches, say))


def of_total(
    where: str, what: str, suite: str, n: int, theirs: str, speedup: float, only: str
) -> Result:
    """Return a row of docs/papers.md for all layers of a suite. It has Convoy's time, and its
    speed-up over the fastest other library for each layer."""

    def say(found: Measured) -> tuple[str, float]:
        total = summarise(found[n], len(found[n]))
        ours = total.best_seconds / total.seconds
        return f"{1e3 * total.seconds:.2f} ms, {ours:.2f}×", ours / speedup

    return on_gpu(where, what, theirs, only, by_batch(MEASURED[suite], (n,), say))


def named() -> list[Result]:
    """Return a row of docs/papers.md for each convolution whose time a paper prints."""
    found = []
    for each in NAMED:

        def say(by_n: Measured, paper: float = each.speedup) -> tuple[str, float]:
            ((pair,),) = by_n.values()
            ours = f"{pair.ours['p50_us']:.1f} µs, {pair.speedup:.2f}× {pair.best['side']}"
            return ours, pair.speedup / paper

        only = f"layer {each.layer.problem} N{each.n} (convoy|torch)$"
        theirs = f"{each.took}: {each.speedup:.2f}×"
        what = f"{each.name}, N = {each.n}"
        found.append(on_gpu(each.where, what, theirs, only, by_batch([each.layer], (each.n,), say)))
    return found


def device(rows: Sequence[Row]) -> Reading | None:
    """Return a Reading with the name of the GPU that was measured last."""
    return Reading(rows[-1]["device"], 0, why="another GPU") if rows else None


def workspace(layers: Sequence[Layer], n: int, side: str) -> Read:
    """Return a function that reads recorded measurements of a library (`side`). This function takes
    the fastest algorithm of each layer, and returns the largest workspace of these algorithms."""

    def reading(rows: Sequence[Row]) -> Reading | None:
        found = [_row(rows, layer.problem.with_batch(n), side) for layer in layers]
        if None in found:
            return None
        most = max(row["workspace_bytes"] or 0 for row in found if row)
        return Reading(f"{most / 1e9:.2f} GB", 0, why="of the fastest, which may take 1 GiB")

    return reading


def of_peak(problem: ConvProblem, theirs: float) -> Read:
    """Return a function that reads recorded measurements, and returns the fraction of the GPU's
    peak arithmetic that Convoy reached for a problem."""

    def reading(rows: Sequence[Row]) -> Reading | None:
        row = _row(rows, problem, CONVOY)
        if row is None:
            return None
        share = 2e6 * problem.macs / row["p50_us"] / row["peak_flops"]
        return Reading(f"{share:.0%} of the peak arithmetic", share / theirs)

    return reading


def _row(rows: Sequence[Row], problem: ConvProblem, side: str) -> Row | None:
    """Return a library's latest row for a problem, measured with a warm cache, or None. `side` is
    the library's name."""
    for row in reversed(rows):
        if (row["problem"], row["side"], row["cache"]) == (str(problem), side, "warm"):
            return row
    return None


FIGURES: Mapping[str, tuple[int, tuple[int, ...], float]] = {
    "figure 5": (1, (1, 8, 16, 32, 64), 1.23),
    "figure 6": (3, (1, 8, 16), 1.0),
    "figure 7": (5, PAPERS_BATCHES["cuconv"], 1.36),
}
"""cuConv's figures: R = S, the values of N, and the mean speed-up at N = 1. For 3×3 the paper
states no number, only "equal or lower"."""


def of_size(size: int) -> list[Layer]:
    """Return the convolutions of the cuConv paper that have filters of size×size."""
    return [layer for layer in CUCONV if layer.problem.window.kernel[0] == size]


def figures() -> list[Result]:
    """Return a row of docs/papers.md for each of cuConv's figures 5 to 7, with Convoy's speed-up
    for each N."""
    found = []
    for where, (size, batches, mean) in FIGURES.items():

        def say(by_n: Measured, mean: float = mean) -> tuple[str, float]:
            totals = {n: summarise(pairs, len(pairs)) for n, pairs in by_n.items()}
            first = totals[min(totals)].geometric_mean
            told = (f"{of.geometric_mean:.2f}× at N = {n}" for n, of in totals.items())
            return ", ".join(told), first / mean

        only = f"layer .* {size}x{size} .*N({'|'.join(map(str, batches))}) (convoy|torch)$"
        what = f"speed-ups of {size}×{size} by N"
        read = by_batch(of_size(size), batches, say)
        found.append(on_gpu(where, what, "an image", only, read))
    return found


def table_figures() -> Cells:
    """Return Convoy's speed-ups for cuConv's figures 5 to 7, with a row for each filter size and
    N."""
    rows: list[Sequence[str]] = [
        ("figure", "filters", "N", "configurations", "measured", "least", "mean", "greatest", "won")
    ]
    for where, (size, batches, _) in FIGURES.items():
        layers = of_size(size)
        for n in batches:
            found = compare(_rows(), layers, n, "warm")
            numbers = [WAITS] * 4
            if found:
                of = summarise(found, len(layers))
                numbers = [f"{x:.2f}×" for x in (of.least, of.geometric_mean, of.greatest)]
                numbers.append(f"{of.won:.0%}")
            rows.append(
                (where, f"{size}×{size}", str(n), str(len(layers)), str(len(found)), *numbers)
            )
    return rows
