"""Formats results as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from loadtest.journal import Journal
from loadtest.summary import QUANTILES, Load, Summary, enough, percentiles
from loadtest.sweep import SweepResult
from loadtest.tables import left, make_table, right

# The number of requests from which the live p50 and p99 are computed.
_RECENT = 1000


def as_table(found: SweepResult) -> Group:
    """Return a table with one row per load, followed by notes and by the phases of one load. That
    load is the best load or, if there is none, the last load."""
    first, *others = QUANTILES
    headings = ("requests", "answers/s", f"{first} ms", *others, "errors")
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
        columns = [
            *left(f"in the server at {closer.load}"),
            *right(*(f"{name} ms" for name in closer.phases_ms)),
        ]
        phases = closer.phases_ms.values()
        shown = [q for q in ("p50", "p99") if enough(closer.answered, q)]
        rows = ((q, *(milliseconds(one[q]) for one in phases)) for q in shown)
        group.renderables.extend([Text(), make_table(columns, rows)])
    if closer.batch_sizes:
        group.renderables.extend(
            [Text(), Text(f"batches at {closer.load}: {_counts(closer.batch_sizes)}")]
        )
    return group


BLOCKS = "▁▂▃▄▅▆▇█"
_CHART = 16  # characters


def live_line(load: Load, journal: Journal, p99s_ms: list[float]) -> str:
    """Return a line about the running load: counts, p50, p99, and a chart of p99 over time.
    `p99s_ms` has the p99 of the earlier lines. The function appends the p99 of this line."""
    recent_ms = journal.recent_ms(_RECENT)
    now = percentiles(recent_ms, "p50", "p99")
    if now["p99"] is not None:
        p99s_ms.append(now["p99"])
    most = max(p99s_ms, default=0.0)
    heights = (min(7, int(8 * value / most)) for value in p99s_ms[-_CHART:])
    chart = "".join(BLOCKS[height] for height in heights)
    p50, p99 = (milliseconds(now[name]) for name in ("p50", "p99"))
    errors = len(journal) - journal.good
    failed = f", {errors:,} error{'' if errors == 1 else 's'}" if errors else ""
    return f"{load}: {journal.good:,} answers{failed}, p50 {p50}, p99 {p99} ms {chart}"


def milliseconds(value: float | None) -> str:
    """Return milliseconds as text with two decimals below 100, or "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _counts(numbers: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} ×{n:,}" for name, n in numbers.items())


def _notes(summary: Summary) -> list[str]:
    notes = []
    if summary.errors:
        notes.append(f"errors: {_counts(summary.errors)}")
    if summary.late is not None:
        in_time = summary.answered - summary.late
        refused = f", {summary.refused:,} refused in time" if summary.refused else ""
        share = in_time / max(1, summary.requests)
        notes.append(f"{in_time:,} of {summary.requests:,} in time ({share:.1%}){refused}")
    if summary.client_limited:
        notes.append(
            f"the load generator limits the result: it used {summary.client_cpu:.2f} of its one"
            " core; the server may do better"
        )
    elif summary.sent_late:
        notes.append(
            f"requests were sent {milliseconds(summary.send_lag_ms['p99'])} ms late at p99, "
            f"although the load generator used only {summary.client_cpu:.2f} cores: other programs "
            "kept this machine busy, and the latency includes this delay"
        )
    if summary.interrupted:
        notes.append(f"ended after {summary.seconds:.1f} s")
    return [f"{summary.load}: {note}" for note in notes]


def _mean_batch(sizes: Mapping[int, int]) -> str:
    batches = sum(sizes.values())
    return f"{sum(size * n for size, n in sizes.items()) / batches:.2f}" if batches else "-"
