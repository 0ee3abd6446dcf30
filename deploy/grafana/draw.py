"""Draws Convoy's Grafana dashboard with data from a running Prometheus, without Grafana.

python deploy/grafana/draw.py http://127.0.0.1:9090 dashboard.png [--minutes 5]

Queries, positions, titles and units come from the dashboard's JSON file. Matplotlib draws the
panels.
"""

import argparse
import json
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

DASHBOARD = Path(__file__).with_name("dashboards") / "convoy.json"

_POINTS = 240
_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms",
    "percentunit": lambda value: f"{value:.0%}",
    "bytes": lambda value: f"{value / 1e6:.0f} MB",
    "reqps": lambda value: f"{value:g}/s",
    "short": lambda value: f"{value:g}",
}

Panel = Mapping[str, Any]


def series(url: str, expression: str, since: float, until: float) -> list[dict[str, Any]]:
    """Run a range query on Prometheus, and return its result."""
    step = max(1, (until - since) / _POINTS)
    query = {"query": expression, "start": since, "end": until, "step": step}
    address = f"{url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  the user's own address
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return a legend in which each {{label}} is replaced by its value, as Grafana does."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), template)


def draw_panel(axes: Axes, panel: Panel, lines: list[tuple[str, list[float], list[float]]]) -> None:
    """Draw one panel. Each of `lines` has a name, times in days (Matplotlib's unit) and values."""
    unit = _UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    axes.set_title(panel["title"], loc="left", fontsize=10, fontweight="bold")
    if panel["type"] == "stat" or not lines:
        axes.set_axis_off()
        told = "   ".join(f"{values[-1]:g} {name}" for name, _, values in lines) or "no data"
        axes.text(0.5, 0.5, told, ha="center", va="center", fontsize=18 if lines else 11)
        return
    stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {})
    if stacked.get("mode") == "normal":
        times = max((moments for _, moments, _ in lines), key=len)
        full = [line for line in lines if len(line[1]) == len(times)]
        axes.stackplot(times, *(v for *_, v in full), labels=[n for n, *_ in full], alpha=0.7)
    else:
        for name, times, values in lines:
            axes.plot(times, values, label=name, linewidth=1.2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    locator = dates.AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    axes.set_ylim(0, 1.35 * max(1e-9, axes.get_ylim()[1]))  # room for the legend
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", ncols=2)


def draw_dashboard(url: str, file: Path, minutes: float) -> list[str]:
    """Draw the last `minutes` minutes. Return the titles of the panels that have no data."""
    until = time.time()
    since = until - 60 * minutes
    panels: list[Panel] = json.loads(DASHBOARD.read_text())["panels"]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(14, bottom * 0.32), dpi=80, facecolor="white")
    empty = []
    for panel in panels:
        place = panel["gridPos"]
        top = 1 - place["y"] / bottom
        if panel["type"] == "row":
            figure.text(0.01, top - 0.012, panel["title"], fontsize=13, fontweight="bold")
            continue
        height, width = place["h"] / bottom, place["w"] / 24
        spot = (place["x"] / 24 + 0.06, top - 0.82 * height, width - 0.08, 0.66 * height)
        lines = [
            (
                legend(target["legendFormat"], found["metric"]),
                [moment / 86_400 for moment, _ in found["values"]],
                [float(value) for _, value in found["values"]],
            )
            for target in panel["targets"]
            for found in series(url, target["expr"], since, until)
        ]
        draw_panel(figure.add_axes(spot), panel, lines)
        if not lines:
            empty.append(panel["title"])
    figure.savefig(file)
    return empty


def main() -> None:
    """Draw the dashboard, and print the titles of panels without data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="address of Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("file", type=Path, help="PNG to write")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes to draw, up to now [5]")
    given = parser.parse_args()
    mpl.rcParams["timezone"] = "UTC"
    empty = draw_dashboard(given.url, given.file, given.minutes)
    if empty:
        sys.stderr.write(f"no data: {', '.join(empty)}\n")


if __name__ == "__main__":
    main()
