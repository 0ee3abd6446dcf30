"""What was measured, for people and for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadtest.summary import Summary


def as_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Plain data, with what follows from it."""
    return [
        {
            **asdict(each),
            "error_share": each.error_share,
            "client_limited": each.client_limited,
        }
        for each in summaries
    ]


def as_table(summaries: Sequence[Summary]) -> Group:
    """A row a load; below, what concerns only some of them."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("load", no_wrap=True)
    for heading in ("requests", "answers/s", "p50 ms", "p90", "p99", "p99.9", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("errors", "mean batch", "sent late, p99 ms"):
        table.add_column(heading, justify="right")
    for each in summaries:
        table.add_row(
            str(each.load),
            f"{each.requests:,}",
            f"{each.throughput:,.1f}",
            *(
                milliseconds(each.latency_ms[name])
                for name in ("p50", "p90", "p99", "p99.9", "max")
            ),
            f"{each.failed:,}",
            _mean_batch(each.batch_sizes),
            milliseconds(each.send_lag_ms["p99"]),
        )
    return Group(table, *(line for each in summaries for line in _notes(each)))


def details(summary: Summary) -> Group:
    """One load more closely: the server's own account of it, and its batches."""
    parts: list[RenderableType] = []
    if summary.phases_ms:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("in the server")
        for name in summary.phases_ms:
            table.add_column(f"{name} ms", justify="right")
        for q in ("p50", "p99"):
            table.add_row(q, *(milliseconds(one[q]) for one in summary.phases_ms.values()))
        parts += [Text(), table]
    if summary.batch_sizes:
        parts += [Text(), Text(f"batches: {counts(summary.batch_sizes)}")]
    return Group(*parts)


def counts(numbers: Mapping[Any, int]) -> str:
    """`1 ×20, 2 ×3`."""
    return ", ".join(f"{name} ×{n:,}" for name, n in numbers.items())


def _notes(each: Summary) -> list[Text]:
    notes = []
    if each.errors:
        notes.append(f"errors: {counts(each.errors)}")
    if each.late is not None:
        in_time = each.answered - each.late
        share = in_time / each.requests if each.requests else 0.0
        refused = f", {each.refused:,} refused in time" if each.refused else ""
        notes.append(f"{in_time:,} of {each.requests:,} in time ({share:.1%}){refused}")
    if each.client_limited:
        notes.append(
            f"part of this is the load generator: it used {each.client_cpu:.2f} cores and sent "
            f"{milliseconds(each.send_lag_ms['p99'])} ms late at p99; the server may do better"
        )
    if each.interrupted:
        notes.append(f"ended after {each.seconds:.1f} s")
    return [Text(f"{each.load}: {note}") for note in notes]


def milliseconds(value: float | None) -> str:
    """As many digits as matter; a dash where there is nothing."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _mean_batch(sizes: Mapping[int, int] | None) -> str:
    batches = sum(sizes.values()) if sizes else 0
    if not sizes or not batches:
        return "-"
    return f"{sum(size * n for size, n in sizes.items()) / batches:.2f}"
