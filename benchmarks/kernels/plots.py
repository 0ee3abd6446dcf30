"""Plots of kernel measurements; Matplotlib is in the extra `dev`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.kernels.report import compare, summarise
from benchmarks.kernels.suites import BATCHES, SUITES
from benchmarks.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NoMatplotlibError(Exception):
    """Says that Matplotlib is not installed: the report has its tables, but no plots."""


def figure_of(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of that size in inches. Raises NoMatplotlibError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise NoMatplotlibError(f"no plots: {error}; pip install matplotlib") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_speedups(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a PNG of each suite's speed-ups over the fastest other side; return the files.

    Each has a panel for each N. Suites without comparisons have none. Raises NoMatplotlibError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for suite, layers in SUITES.items():
        batches = [n for n in BATCHES if compare(rows, layers, n, "warm")]
        if not batches:
            continue
        width = max(6.0, 0.16 * len(layers) + 2)
        figure = figure_of((width, 2.6 * len(batches) + 1))
        panels = figure.subplots(len(batches), 1, squeeze=False)[:, 0]
        for n, panel in zip(batches, panels, strict=True):
            for offset, cache in ((-0.2, "warm"), (0.2, "cold")):
                comparisons = compare(rows, layers, n, cache)
                if not comparisons:
                    continue
                place = {layer.name: index for index, layer in enumerate(layers)}
                mean = summarise(comparisons, len(layers)).geometric_mean
                panel.bar(
                    [place[comparison.layer.name] + offset for comparison in comparisons],
                    [comparison.speedup for comparison in comparisons],
                    width=0.4,
                    label=f"cache {cache}, geometric mean {mean:.2f}",
                )
            panel.axhline(1, color="black", linewidth=0.8)
            panel.set_xticks(range(len(layers)), [])
            panel.set_xlim(-1, len(layers))
            panel.set_ylabel("speed-up")
            panel.set_title(f"{suite}, N = {n}", loc="left")
            panel.legend(fontsize="small")
        panels[-1].set_xticks(
            range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize="x-small"
        )
        files.append(folder / f"{suite}.png")
        figure.savefig(files[-1], dpi=120)
    return files
