"""Shows what was measured: tables, JSON, and a plot of latency over throughput."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from loadtest.summary import QUANTILES, Summary
from loadtest.sweep import Found
from loadtest.tables import left, make_table, right
from models import __version__


def as_json(conditions: Mapping[str, Any], images: int, found: Found) -> bytes:
    """The test and every load, with the properties of its `Summary`, as indented JSON."""
    loads = [
        {**asdict(each), "error_share": each.error_share, "client_limited": each.client_limited}
        for each in found.steps
    ]
    content = {
        **conditions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "convoy": __version__,
        "images": images,
        "highest_rate": found.best.load.rate if found.best else None,
        "limited_by_client": found.limited_by_client,
        "loads": loads,
    }
    return msgspec.json.format(msgspec.json.encode(content))


def as_table(found: Found) -> Group:
    """One row for each load, and notes on some; for the best or last load also its phases."""
    headings = ("requests", "answers/s", "p50 ms", "p90", "p99", "p99.9", "max", "errors")
    columns = [*left("load"), *right(*headings, "mean batch", "send lag, p99 ms")]
    rows = (
        (
            str(each.load),
            f"{each.requests:,}",
            f"{each.throughput:,.1f}",
            *(milliseconds(each.latency_ms[name]) for name in QUANTILES),
            f"{each.failed:,}",
            _mean_batch(each.batch_sizes or {}),
            milliseconds(each.send_lag_ms["p99"]),
        )
        for each in found.steps
    )
    group = Group(
        make_table(columns, rows), *(Text(note) for each in found.steps for note in _notes(each))
    )
    closer = found.best or found.steps[-1]
    if closer.phases_ms:
        columns = [*left("in the server"), *right(*(f"{name} ms" for name in closer.phases_ms))]
        phases = closer.phases_ms.values()
        rows = ((q, *(milliseconds(one[q]) for one in phases)) for q in ("p50", "p99"))
        group.renderables.extend([Text(), make_table(columns, rows)])
    if closer.batch_sizes:
        group.renderables.extend([Text(), Text(f"batches: {_counts(closer.batch_sizes)}")])
    return group


def milliseconds(value: float | None) -> str:
    """Two decimals below 100; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def plot(found: Found, file: Path, *, title: str, bound_ms: float | None = None) -> None:
    """Draw a line for each percentile to a PNG, from the lowest load to the highest.

    A line turns back where an overloaded server answers less. Raises OSError. Needs Matplotlib,
    of the extra `loadtest`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    measured = sorted(
        (each for each in found.steps if each.answered),
        key=lambda each: each.load.rate or each.load.clients or 0.0,
    )
    rates = [each.throughput for each in measured]
    doubtful = [i for i, each in enumerate(measured) if each.failed or each.client_limited]
    for name in QUANTILES:
        if name != "max":
            latencies = [each.latency_ms[name] or 0.0 for each in measured]
            panel.plot(rates, latencies, "o-", label=name)
            panel.plot([rates[i] for i in doubtful], [latencies[i] for i in doubtful], "wo", ms=3)
    if doubtful:
        panel.plot([], [], "ko", fillstyle="none", label="with errors, or limited by the client")
    if bound_ms is not None:
        panel.axhline(bound_ms, color="black", linewidth=0.8, linestyle="--", label="bound on p99")
    panel.set(xlim=(0, None), xlabel="valid answers per second")
    panel.set(yscale="log", ylabel="latency from the intended send time, ms")
    panel.grid(visible=True, which="both", linewidth=0.3)
    panel.set_title(title, loc="left", fontsize="medium")
    panel.legend()
    figure.savefig(file, dpi=120)


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
