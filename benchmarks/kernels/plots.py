"""Draws PNG plots of the kernels' measured times."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels.report import compare, summarise
from benchmarks.kernels.suites import BATCHES, MEASURED, PAPERS_BATCHES, SUITES
from benchmarks.plots import figure_of
from benchmarks.rows import Row


def plot_rates(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Plot the effective TFLOPS of the vgg-e layers against N, like Lavin & Gray's figure 1. Write
    a PNG for each measured precision, and return the files.

    Each layer has a panel with two bars per N, one for Convoy and one for the fastest other
    library. A bar's height is the number of operations of the direct algorithm, divided by the
    measured time. Convoy's bar is hatched if its algorithm transforms data in a separate launch.
    Raises NoMatplotlibError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for suite in ("vgg-e", "vgg-e fp16"):
        layers, batches = MEASURED[suite], PAPERS_BATCHES[suite]
        found = {n: compare(rows, layers, n, "warm") for n in batches}
        if not any(found.values()):
            continue
        figure = figure_of((11, 8))
        for panel, layer in zip(figure.subplots(3, 3).flat, layers, strict=True):
            for column, n in enumerate(batches):
                for pair in found[n]:
                    if pair.layer is not layer:
                        continue
                    flops = 2e-6 * layer.problem.with_batch(n).macs
                    for offset, row, colour in (
                        (-0.2, pair.ours, "tab:blue"),
                        (0.2, pair.best, "tab:grey"),
                    ):
                        hatch = "//" if "non-fused" in row["choice"] else None
                        rate = flops / row["p50_us"]
                        panel.bar(column + offset, rate, width=0.4, color=colour, hatch=hatch)
            panel.set_xticks(range(len(batches)), list(map(str, batches)))
            panel.set_title(layer.name, loc="left", fontsize="small")
        figure.supxlabel("N")
        figure.supylabel("effective TFLOPS: Convoy, and the fastest other in grey")
        files.append(folder / f"{suite.replace(' ', '-')}-tflops.png")
        figure.savefig(files[-1], dpi=120)
    return files


def plot_speedups(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Plot Convoy's speed-ups over the fastest other library. Write a PNG for each suite of layers,
    and return the files.

    A PNG has a panel for each N. A suite without comparisons has no PNG. Raises NoMatplotlibError.
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
                column = {layer.name: index for index, layer in enumerate(layers)}
                mean = summarise(comparisons, len(layers)).geometric_mean
                panel.bar(
                    [column[comparison.layer.name] + offset for comparison in comparisons],
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
