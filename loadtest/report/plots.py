"""Plots one or more runs with Matplotlib. The package's extra `loadtest` contains Matplotlib."""

from collections.abc import Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from loadtest.answers import PHASES
from loadtest.report.record import Run
from loadtest.summary import QUANTILES

_STYLES = dict(zip(QUANTILES, cycle(("-", "-.", "--", ":")), strict=False))
_COMPARED = ("p50", "p99")  # the percentiles that are drawn for several runs


def title(runs: Sequence[Run]) -> str:
    """Return the model, the device and the machine. If these differ between runs, return one line
    per run."""
    subjects = [str(run.subject) for run in runs]
    if len(set(subjects)) == 1:
        return subjects[0]
    return "\n".join(f"{run.name}: {subject}" for run, subject in zip(runs, subjects, strict=True))


def latency_plot(runs: Sequence[Run], bound_ms: float | None = None) -> Figure:
    """Plot latency over throughput, with one line per percentile. Each line connects the loads from
    low to high.

    If an overloaded server answers fewer requests per second, the line bends back to the left. A
    percentile is omitted where there are too few answers. If there are several runs, each has its
    own colour.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.add_subplot()
    names = [name for name in QUANTILES if name != "max"] if len(runs) == 1 else _COMPARED
    handles = []
    for number, run in enumerate(runs):
        for index, name in enumerate(names):
            colour = f"C{index if len(runs) == 1 else number}"
            if _draw(panel, run, name, colour):
                label = name if len(runs) == 1 else f"{run.name}, {name}"
                handles.append(Line2D([], [], color=colour, ls=_STYLES[name], label=label))
    steps = [step for run in runs for step in run.found.steps if step.answered]
    if any(step.failed or step.client_limited for step in steps):
        label = "with errors, or limited by the client"
        handles.append(Line2D([], [], color="black", marker="o", mfc="white", ls="", label=label))
    if bound_ms is not None:
        line = panel.axhline(bound_ms, color="black", linewidth=0.8, ls="-", label="bound on p99")
        handles.append(line)
    panel.set(xlim=(0, None), xlabel="valid answers per second")
    panel.set(yscale="log", ylabel="latency from the intended send time, ms")
    _in_plain_numbers(panel)
    panel.grid(visible=True, which="major", linewidth=0.3)
    panel.set_title(title(runs), loc="left", fontsize="medium")
    panel.legend(handles=handles, fontsize="small")
    return figure


def phase_plot(runs: Sequence[Run]) -> Figure:
    """Plot the median time in each phase of a request in the server, with one bar per load."""
    rows = [
        (f"{run.name}, {step.load}" if len(runs) > 1 else str(step.load), step.phases_ms)
        for run in runs
        for step in run.found.steps
        if step.phases_ms
    ]
    figure = Figure(figsize=(8, 1.7 + 0.3 * len(rows)), layout="constrained")
    panel = figure.add_subplot()
    names = [name for name, _ in rows]
    ends = [0.0] * len(rows)
    for phase in PHASES:
        widths = [phases[phase]["p50"] or 0.0 for _, phases in rows]
        panel.barh(range(len(rows)), widths, left=ends, label=phase)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    panel.set_yticks(range(len(rows)), names)
    panel.invert_yaxis()  # the first load is at the top
    panel.set(xlim=(0, None), xlabel="median time in the server, ms")
    panel.set_title(title(runs), loc="left", fontsize="medium")
    figure.legend(loc="outside lower center", ncols=len(PHASES), fontsize="small")
    return figure


def _draw(panel: Axes, run: Run, name: str, colour: str) -> bool:
    """Draw the line of one percentile. Return False if no load has enough answers to compute it."""
    points = [
        (step.throughput, value, bool(step.failed or step.client_limited))
        for step in sorted(
            (step for step in run.found.steps if step.answered),
            key=lambda step: step.load.rate or step.load.clients or 0.0,
        )
        if (value := step.shown_ms[name]) is not None
    ]
    if points:
        rates, values, _ = zip(*points, strict=True)
        panel.plot(rates, values, _STYLES[name], marker="o", color=colour)
        doubtful = [(rate, value) for rate, value, doubt in points if doubt]
        if doubtful:
            panel.plot(*zip(*doubtful, strict=True), "wo", ms=3)
    return bool(points)


def _in_plain_numbers(panel: Axes) -> None:
    """Label an axis in plain numbers, such as 5, 10 and 20, instead of powers of ten."""
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
