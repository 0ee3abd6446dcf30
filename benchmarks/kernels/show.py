"""Tables of kernel measurements, for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.kernels.report import GOALS, Comparison, compare, reached, summarise
from benchmarks.kernels.suites import BATCHES, SUITES
from benchmarks.rows import Row


def show(rows: Sequence[Row], console: Console) -> None:
    """A table for each suite, N and state of the cache that there are rows of; then the goals."""
    for suite, layers in SUITES.items():
        for cache in ("warm", "cold"):
            for n in BATCHES:
                comparisons = compare(rows, layers, n, cache)
                if comparisons:
                    title = f"{suite}, N = {n}, cache {cache}"
                    console.print(_table(title, comparisons, len(layers)))
    for goal in GOALS:
        for cache in ("warm", "cold"):
            value = reached(rows, goal, cache)
            if value is None:
                verdict, found = "not measured", ""
            else:
                verdict = "met" if value >= goal.at_least else "NOT MET"
                found = f" {value:.2f},"
            console.print(
                f"{verdict}: {goal}, cache {cache}:{found} promised at least {goal.at_least}",
                soft_wrap=True,
            )


def _table(title: str, comparisons: Sequence[Comparison], layers: int) -> Table:
    table = Table(title=title, title_justify="left", show_footer=True)
    total = summarise(comparisons, layers)
    count = f"{total.measured} of {total.layers} layers"
    columns = (
        ("", count),
        ("Convoy", ""),
        ("µs", ""),
        ("fastest other", ""),
        ("µs", ""),
        ("speed-up", f"{total.geometric_mean:.2f}, faster in {total.won:.0%}"),
        ("TFLOPS", f"{total.tflops:.1f}"),
        ("of peak", f"{total.of_peak:.0%}"),
    )
    for heading, footer in columns:
        left = heading in ("", "Convoy", "fastest other")
        table.add_column(heading, footer=footer, justify="left" if left else "right")
    for each in comparisons:
        times = f" ×{each.layer.count}" if each.layer.count > 1 else ""
        table.add_row(
            each.layer.name + times,
            each.ours["choice"],
            f"{each.ours['p50_us']:.2f}",
            f"{each.best['side']}: {each.best['choice']}",
            f"{each.best['p50_us']:.2f}",
            f"{each.speedup:.2f}",
            f"{each.tflops:.1f}",
            f"{each.of_peak:.0%}",
        )
    return table
