"""Formats results as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from loadtest.summary import QUANTILES, Summary, enough
from loadtest.sweep import Found
from loadtest.tables import left, make_table, right


def as_table(found: Found) -> Group:
    """Return one row for each load with notes, and the phases of the best or last load."""
    headings = ("requests", "answers/s", "p50 ms", "p90", "p99", "p99.9", "max", "errors")
    columns = [*left("load"), *right(*headings, "mean batch", "send lag, p99 ms")]
    rows = (
        (
            str(step.load),
            f"{step.requests:,}",
            f"{step.throughput:,.1f}",
            *(milliseconds(step.shown_ms[name]) for name in QUANTILES),
            f"{step.failed:,}",
            _mean_batch(step.batch_sizes or {}),
            milliseconds(step.send_lag_ms["p99"]),
        )
        for step in found.steps
    )
    group = Group(
        make_table(columns, rows), *(Text(note) for step in found.steps for note in _notes(step))
    )
    closer = found.best or found.steps[-1]
    if closer.phases_ms:
        columns = [*left("in the server"), *right(*(f"{name} ms" for name in closer.phases_ms))]
        phases = closer.phases_ms.values()
        shown = [q for q in ("p50", "p99") if enough(closer.answered, q)]
        rows = ((q, *(milliseconds(one[q]) for one in phases)) for q in shown)
        group.renderables.extend([Text(), make_table(columns, rows)])
    if closer.batch_sizes:
        group.renderables.extend([Text(), Text(f"batches: {_counts(closer.batch_sizes)}")])
    return group


def milliseconds(value: float | None) -> str:
    """Format milliseconds: two decimals below 100, "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _counts(numbers: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} ×{n:,}" for name, n in numbers.items())


def _notes(each: Summary) -> list[str]:
    notes = []
    if each.errors:
        notes.append(f"errors: {_counts(each.errors)}")
    if each.late is not None:
        in_time = each.answered - each.late
        refused = f", {each.refused:,} refused in time" if each.refused else ""
        share = in_time / max(1, each.requests)
        notes.append(f"{in_time:,} of {each.requests:,} in time ({share:.1%}){refused}")
    if each.client_limited:
        notes.append(
            f"the load generator limits this: it used {each.client_cpu:.2f} cores and sent "
            f"{milliseconds(each.send_lag_ms['p99'])} ms late at p99; the server may do better"
        )
    if each.interrupted:
        notes.append(f"ended after {each.seconds:.1f} s")
    return [f"{each.load}: {note}" for note in notes]


def _mean_batch(sizes: Mapping[int, int]) -> str:
    batches = sum(sizes.values())
    return f"{sum(size * n for size, n in sizes.items()) / batches:.2f}" if batches else "-"
