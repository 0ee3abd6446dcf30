"""Plots the time of each layer, and when each launch of a batch runs, for `convoy inspect`."""

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models import PlanReport, Timeline, how_to_install
from service.settings import SettingsError

_NAME = 32
"""The largest number of characters of a node's name in a plot. It is the same as in a table of 80
columns."""


def shortened(name: str) -> str:
    """Return a node's name, or only the end of a long name. Long names differ at the end."""
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def times_of(timeline: Timeline) -> dict[str, float]:
    """Return how many µs the launches of each node take. Launches of different nodes may
    overlap."""
    us: dict[str, float] = defaultdict(float)
    for bar in timeline.bars:
        us[bar.name] += bar.end_us - bar.start_us
    return us


def plot_times(plan: PlanReport, file: Path) -> None:
    """Plot one bar per node to a PNG file. Raises SettingsError if matplotlib is missing, or if the
    file does not end in .png."""
    if file.suffix != ".png":
        raise SettingsError(f"--plot: {file} must end in .png")
    us = times_of(plan.timeline)
    figure = _figure("--plot", 8, 1 + 0.2 * len(us))
    panel = figure.add_subplot()
    panel.barh([shortened(name) for name in us], list(us.values()))
    panel.invert_yaxis()  # the first layer above
    panel.set_xlabel("µs by the cost model, not measured")
    panel.set_title(
        f"{plan.name}, N = {plan.n}, {plan.gpu.name}: {sum(us.values()):.1f} µs in layers",
        loc="left",
    )
    figure.savefig(file, dpi=120)


def plot_timeline(timeline: Timeline, file: Path) -> None:
    """Plot one bar per launch from its start to its end, as SVG or PNG according to the file's
    suffix.

    A thin line before a bar shows how long the launch waited after the launches on which it
    depends. The plot says whether times are modelled or measured. Raises SettingsError if
    matplotlib is missing, or if the file has another suffix.
    """
    if file.suffix not in (".svg", ".png"):
        raise SettingsError(f"--timeline: {file} must end in .svg or .png")
    bars, replay_us = timeline.bars, timeline.replay_us
    figure = _figure("--timeline", 11, 1.2 + 0.17 * len(bars))
    panel = figure.add_subplot()
    for row, bar in enumerate(bars):
        ready_us = max((bars[other].end_us for other in bar.after), default=bar.start_us)
        panel.plot([ready_us, bar.start_us], [row, row], color="tab:red", linewidth=1)
        panel.barh(row, bar.end_us - bar.start_us, left=bar.start_us, color="tab:blue")
    names = [shortened(bar.name) for bar in bars]
    panel.set_yticks(range(len(names)), names, fontsize=6)
    panel.set_ylim(len(names) - 0.5, -0.5)  # the first launch above
    panel.set_xlim(0, timeline.us)
    source = (
        "by the cost model, not measured"
        if replay_us is None
        else "measured between events, which keep launches from overlapping\n"
        f"one replay of the graph, with its copies, takes {replay_us:.1f} µs"
    )
    panel.set_xlabel(f"µs from the first launch's start, {source}")
    panel.grid(axis="x", linewidth=0.3)
    panel.set_title(
        f"{timeline.name}, N = {timeline.n}, {timeline.gpu}: {len(bars)} launches,"
        f" {timeline.us:.1f} µs, of which {timeline.gaps_us:.1f} are gaps",
        loc="left",
    )
    figure.savefig(file, dpi=120)


def _figure(flag: str, width: float, height: float) -> Any:
    """Return an empty figure. `width` and `height` are in inches. Raises SettingsError, which names
    the command-line flag `flag`, if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise SettingsError(f"{flag}: matplotlib is not installed; {how_to_install('loadtest')}")
    from matplotlib.figure import Figure  # noqa: PLC0415  in the extra `loadtest`

    return Figure(figsize=(width, height), layout="constrained")
