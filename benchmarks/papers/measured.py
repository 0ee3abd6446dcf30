"""Says what a GPU measured of the papers' configurations, or that they wait for one."""

from collections.abc import Callable, Sequence
from functools import cache

from benchmarks.gpu.report import of_kind, of_last, rows_of
from benchmarks.gpu.units import LAYER
from benchmarks.kernels.report import Comparison, Goal, compare, reached, summarise
from benchmarks.kernels.suites import MEASURED, NAMED, Layer
from benchmarks.papers.result import Result, Status
from benchmarks.rows import RESULTS, Row, read

WAITS = "waits"

Say = Callable[[Sequence[Comparison]], tuple[str, float]]
"""What is said of all comparisons, and Convoy's number over the paper's."""


def run(only: str) -> str:
    """Return the command that measures the layers whose units' names have an expression."""
    return f'python -m benchmarks.gpu run --only "{only}"'


@cache
def _rows() -> list[Row]:
    lines = read(RESULTS / "gpu.jsonl")
    return of_kind(rows_of(of_last(lines)), LAYER) if lines else []


def on_gpu(
    where: str,
    what: str,
    theirs: str,
    only: str,
    layers: Sequence[Layer] = (),
    n: int = 1,
    say: Say | None = None,
) -> Result:
    """Return a row that needs a GPU; if all its layers are measured, with Convoy's number."""
    found = compare(_rows(), layers, n, "warm")
    if say is None or not layers or len(found) < len(layers):
        return Result(where, what, theirs, WAITS, Status.NEEDS_GPU, run(only))
    ours, over = say(found)
    return _compared(where, what, theirs, ours, over, run(only))


def _compared(where: str, what: str, theirs: str, ours: str, over: float, command: str) -> Result:
    if over >= 1:
        return Result(where, what, theirs, ours, Status.BETTER, command)
    why = "on another GPU, beside newer libraries"
    return Result(where, what, theirs, ours, Status.IN_PART, command, why)


def of_goal(where: str, what: str, theirs: str, only: str, goal: Goal) -> Result:
    """Return a row whose number is one that a goal limits."""
    value = reached(_rows(), goal, "warm")
    if value is None:
        return Result(where, what, theirs, WAITS, Status.NEEDS_GPU, run(only))
    return _compared(where, what, theirs, f"{value:.2f}", value / goal.at_least, run(only))


def of_total(
    where: str, what: str, suite: str, n: int, theirs: str, speedup: float, only: str
) -> Result:
    """Return a row of all layers of a suite: the fastest others' time over Convoy's."""
    layers = MEASURED[suite]

    def say(found: Sequence[Comparison]) -> tuple[str, float]:
        total = summarise(found, len(layers))
        ours = total.best_seconds / total.seconds
        return f"{1e3 * total.seconds:.2f} ms, {ours:.2f}×", ours / speedup

    return on_gpu(where, what, theirs, only, layers, n, say)


def named() -> list[Result]:
    """Return a row for each configuration of which a paper prints the time."""
    found = []
    for each in NAMED:
        paper = each.speedup

        def say(pairs: Sequence[Comparison], paper: float = paper) -> tuple[str, float]:
            (pair,) = pairs
            ours = f"{pair.ours['p50_us']:.1f} µs, {pair.speedup:.2f}× {pair.best['side']}"
            return ours, pair.speedup / paper

        only = f"layer {each.layer.problem} N{each.n} (convoy|torch)$"
        theirs = f"{each.took}: {each.speedup:.2f}×"
        what = f"{each.name}, N = {each.n}"
        found.append(on_gpu(each.where, what, theirs, only, [each.layer], each.n, say))
    return found
