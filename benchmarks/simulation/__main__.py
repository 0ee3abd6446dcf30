"""Compares Convoy's batching policy with others by `python -m benchmarks.simulation`.

    python -m benchmarks.simulation [--requests N] [--seeds N] [--engines K]
        [--record [FILE]]
    python -m benchmarks.simulation --bounds [--requests N]

The second prints how far the policy is from what no policy exceeds (gaps.py).

The policy is the code that serves (`service/batching/policy.py`); the engine, the arrivals and the
clock are simulated, so this compares decisions and says nothing of any machine. The criterion is in
`comparison.py`: beaten nowhere by more than 5%, ahead of each other scheduler over the sweep. Runs
with the same arguments give the same results.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from math import inf, isinf
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.rows import RESULTS, add_record, append, commit, now, versions
from benchmarks.simulation import gaps
from benchmarks.simulation.comparison import (
    BEATEN,
    Comparison,
    compare,
    geometric_mean,
    summary,
)
from benchmarks.simulation.workloads import Point, sweep

FILE = RESULTS / "simulate.jsonl"


def run(points: Sequence[Point], requests: int, seeds: int, processes: int) -> list[Comparison]:
    """Return the comparison of all schedulers at every point."""
    one = partial(compare, requests=requests, seeds=range(seeds))
    # Spawned, because a fork does not copy the caller's threads.
    with get_context("spawn").Pool(processes) as pool:
        return list(track(pool.imap(one, points), total=len(points), console=Console(stderr=True)))


def show(comparisons: Sequence[Comparison], console: Console) -> bool:
    """Print tables, and return whether the criterion is met."""
    console.print(_by_workload(comparisons))
    overall = summary(comparisons)
    console.print(_by_kind(comparisons))
    for comparison in comparisons:
        for what, (name, ratio) in comparison.trades().items():
            over = comparison.scores()[name]
            console.print(
                f"{_named(comparison.point)}: {what} {ratio:.2f} of {name}'s, all in all {over:.2f}"
            )
    beaten = [
        (comparison.point, comparison.beaten_by())
        for comparison in comparisons
        if comparison.beaten_by()
    ]
    for point, by in beaten:
        console.print(f"BEATEN at {_named(point)}: {by}")
    worst = min(min(comparison.scores().values()) for comparison in comparisons)
    met = not beaten and all(score > 1 for score in overall.values())
    console.print(
        f"{'met' if met else 'NOT MET'}: the worst score of {len(comparisons)} points is "
        f"{worst:.3f} (at least {BEATEN}); over the sweep the least is {min(overall.values()):.3f} "
        "(above 1)"
    )
    return met


def show_gaps(found: Sequence[gaps.Gap], console: Console) -> None:
    """Print a line for each profile, workload and measure, with the excess over the bound by
    load.
    """
    table = Table(box=None, title="worse than the bound by, %", title_justify="left")
    for heading in ("L(n)", "workload", "what", "mean", "worst", "at", "all"):
        table.add_column(heading, justify="left" if heading in {"L(n)", "workload"} else "right")
    groups: dict[tuple[str, str, str], list[gaps.Gap]] = {}
    for gap in found:
        groups.setdefault((gap.profile, gap.workload, gap.what), []).append(gap)
    for key, group in groups.items():
        worst = max(group, key=lambda gap: gap.ratio)
        shown = " ".join(f"{gap.load:g}:{100 * gap.excess:.1f}" for gap in group)
        mean = sum(gap.excess for gap in group) / len(group)
        cells = f"{100 * mean:.1f}", f"{100 * worst.excess:.1f}", f"{worst.load:g}", shown
        table.add_row(*key, *cells)
    console.print(table)


def _by_workload(comparisons: Sequence[Comparison]) -> Table:
    table = Table(box=None, title="ours over the best of the others", title_justify="left")
    for heading in ("L(n)", "workload", "deadline", "points", "mean", "worst", "there", "against"):
        table.add_column(heading, justify="left" if heading in {"L(n)", "workload"} else "right")
    groups: dict[tuple[str, str, float], list[Comparison]] = {}
    for comparison in comparisons:
        key = (comparison.point.profile, comparison.point.workload, comparison.point.timeout)
        groups.setdefault(key, []).append(comparison)
    for (profile, workload, timeout), group in groups.items():
        lowest = [
            min((score, name) for name, score in comparison.scores().items())
            for comparison in group
        ]
        worst, against = min(lowest)
        at = group[lowest.index((worst, against))].point
        table.add_row(
            profile,
            workload,
            "" if isinf(timeout) else f"{timeout:g} L(8)",
            str(len(group)),
            f"{geometric_mean(score for score, _ in lowest):.3f}",
            f"{worst:.3f}",
            f"{at.load:g}",
            against,
        )
    return table


def _by_kind(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of three geometric means of the sweep: over all, without deadlines, and
    with."""
    patient = [comparison for comparison in comparisons if isinf(comparison.point.timeout)]
    hurried = [comparison for comparison in comparisons if not isinf(comparison.point.timeout)]
    table = Table(box=None, title="ours over it, geometric mean", title_justify="left")
    kinds = {"over all": comparisons, "without deadlines": patient, "with": hurried}
    kinds = {kind: some for kind, some in kinds.items() if some}
    table.add_column("")
    for kind in kinds:
        table.add_column(kind, justify="right")
    scores = [summary(some) for some in kinds.values()]
    for name in scores[0]:
        table.add_row(name, *(f"{score[name]:.3f}" for score in scores))
    return table


def _named(point: Point) -> str:
    load = f"{point.load:g} clients" if point.closed else f"load {point.load:g}"
    deadline = "" if point.timeout == inf else f", deadline {point.timeout:g} L(8)"
    return f"{point.profile}, {point.workload}, {load}{deadline}"


_DIGITS = {"p50_ms": 3, "p99_ms": 3, "throughput": 1, "goodput": 4, "batch": 2}
"""The numbers of a result that are recorded, with the digits that each is rounded to."""


def as_lines(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for each profile, workload and deadline; each number is a list over loads."""
    lines: dict[tuple[str, str, float], dict[str, Any]] = {}
    for comparison in comparisons:
        point = comparison.point
        line = lines.setdefault(
            (point.profile, point.workload, point.timeout),
            {
                "profile": point.profile,
                "workload": point.workload,
                "deadline_l8": None if isinf(point.timeout) else point.timeout,
                "loads": [],
                "results": {name: {what: [] for what in _DIGITS} for name in comparison.results},
            },
        )
        line["loads"].append(point.load)
        for name, result in comparison.results.items():
            for what, digits in _DIGITS.items():
                line["results"][name][what].append(round(getattr(result, what), digits))
    return list(lines.values())


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description="Simulate the latency policy and others.",
    )
    parser.add_argument(
        "--requests", type=int, default=6000, help="a run, of each seed (%(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs a point (%(default)s)")
    parser.add_argument("--engines", type=int, default=1, help="of the server (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="at once (%(default)s)")
    parser.add_argument(
        "--bounds", action="store_true", help="only: how far it is from what no policy exceeds"
    )
    add_record(parser, FILE)
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> None:
    """Simulate, print, and write down what is requested; exit with 1 if the criterion is not
    met.
    """
    arguments = parse_arguments(command_line)
    if arguments.bounds:
        show_gaps(list(gaps.every(arguments.requests)), Console(highlight=False, soft_wrap=True))
        return
    comparisons = run(
        list(sweep(arguments.engines)),
        arguments.requests,
        arguments.seeds,
        max(1, arguments.processes),
    )
    met = show(comparisons, Console(highlight=False, soft_wrap=True))
    setup = {"requests": arguments.requests, "seeds": arguments.seeds}
    setup |= {"engines": arguments.engines}
    stands = {"date": now(), "commit": commit(), **versions("numpy"), **setup}
    if arguments.record:
        append(arguments.record, [{**stands, **line} for line in as_lines(comparisons)])
    if not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
