"""Plots of a sweep; Matplotlib is in the extra `dev`."""

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.simulation.comparison import Comparison, Result
from benchmarks.simulation.schedulers import CONVOY, SCHEDULERS

_ROWS: Sequence[tuple[str, Callable[[Result], float]]] = (
    ("p50, ms", lambda result: result.p50_ms),
    ("p99, ms", lambda result: result.p99_ms),
    ("answers a second", lambda result: result.throughput),
)


def plot(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Two PNGs a profile: latencies and throughput without deadlines, goodput with them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for profile in dict.fromkeys(each.point.profile for each in comparisons):
        mine = [each for each in comparisons if each.point.profile == profile]
        patient = [each for each in mine if each.point.timeout == inf]
        hurried = [each for each in mine if each.point.timeout < inf]
        for kind, some in (("latency", patient), ("goodput", hurried)):
            if some:
                figure = _latency(some) if kind == "latency" else _goodput(some)
                figure.suptitle(f"{kind}, {profile} L(n)")
                files.append(folder / f"simulate-{profile}-{kind}.png")
                _legend(figure)
                figure.savefig(files[-1], dpi=75)
                # In few colours it is small enough to lie among the results.
                few = Image.open(files[-1]).convert("RGB").quantize(128)
                few.save(files[-1], optimize=True)
    return files


def _latency(comparisons: Sequence[Comparison]) -> Figure:
    workloads = list(dict.fromkeys(each.point.workload for each in comparisons))
    figure, panels = _grid(len(_ROWS), len(workloads))
    for column, workload in enumerate(workloads):
        some = [each for each in comparisons if each.point.workload == workload]
        closed = some[0].point.closed
        for row, (what, read) in enumerate(_ROWS):
            panel = panels[row][column]
            _lines(panel, some, read)
            panel.set_yscale("log")
            if closed:
                panel.set_xscale("log", base=2)
            if column == 0:
                panel.set_ylabel(what)
        panels[0][column].set_title(workload, fontsize="medium")
        panels[-1][column].set_xlabel("clients" if closed else "load")
    return figure


def _goodput(comparisons: Sequence[Comparison]) -> Figure:
    workloads = list(dict.fromkeys(each.point.workload for each in comparisons))
    timeouts = list(dict.fromkeys(each.point.timeout for each in comparisons))
    figure, panels = _grid(len(timeouts), len(workloads))
    for row, timeout in enumerate(timeouts):
        for column, workload in enumerate(workloads):
            panel = panels[row][column]
            some = [
                each
                for each in comparisons
                if (each.point.workload, each.point.timeout) == (workload, timeout)
            ]
            _lines(panel, some, lambda result: result.goodput)
            panel.set_title(f"{workload}, deadline {timeout:g} L(8)", fontsize="medium")
            panel.set_ylim(0, 1.05)
            panel.set_xlabel("load")
    return figure


def _legend(figure: Figure) -> None:
    """One for all panels, below them; ours first."""
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines[::-1], names[::-1], loc="outside lower center", ncols=4)


def _grid(rows: int, columns: int) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def _lines(panel: Axes, some: Sequence[Comparison], read: Callable[[Result], float]) -> None:
    loads = [each.point.load for each in some]
    for place, name in reversed(list(enumerate(SCHEDULERS))):  # ours is drawn over the others
        ours = name == CONVOY
        panel.plot(
            loads,
            [read(each.results[name]) for each in some],
            label=name,
            color="black" if ours else f"C{place - 1}",
            linestyle="-" if ours else (place, (6, 6)),  # those that are alike take turns
            linewidth=2.0 if ours else 1.0,
            marker="." if ours else None,
        )
    panel.grid(visible=True, alpha=0.3)
