"""Draws, for docs/batching.md, the batches of four policies over time for the same arrivals.

    python -m benchmarks.simulation.picture [FILE]

The arrivals are those of a point of the sweep, and what is drawn is late enough for each policy to
have learnt what it learns.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plots import figure_of
from benchmarks.rows import ROOT
from benchmarks.simulation.schedulers import CONVOY, SCHEDULERS
from benchmarks.simulation.server import Run, simulate
from benchmarks.simulation.workloads import Point

FILE = ROOT / "docs" / "batching.png"
POINT = Point("flat", "bursts", 0.3)
POLICIES = {
    CONVOY: "Convoy",
    "Triton": "as many as wait, at once (Triton's default)",
    "delay 1 ms": "a full batch, or after 1 ms",
    "delay 5 ms": "a full batch, or after 5 ms",
}

_REQUESTS = 3000
_BEGIN_S = 1.0
_LAST_S = 0.03


def runs_of(policy: str) -> Sequence[Run]:
    """Return the batches of a policy at the point, in order."""
    seconds = POINT.seconds
    scheduler = SCHEDULERS[policy](seconds, 2 * seconds[-1], 0, 1)
    return simulate(scheduler, seconds, POINT.requests(_REQUESTS, 0)).runs


def mean_ms(runs: Sequence[Run]) -> float:
    """Return the mean latency of all items."""
    latencies = [run.ended - arrived for run in runs for arrived in run.arrivals]
    return 1000 * sum(latencies) / len(latencies)


def draw(file: Path) -> None:
    """Write the picture. Raises NoMatplotlibError."""
    figure = figure_of((9.0, 5.0))
    panels = figure.subplots(len(POLICIES), 1, sharex=True)
    for (policy, name), panel in zip(POLICIES.items(), panels, strict=True):
        runs = runs_of(policy)
        shown = [run for run in runs if _BEGIN_S <= run.began < _BEGIN_S + _LAST_S]
        for run in shown:
            begins, took, items = _ms(run.began), 1000 * (run.ended - run.began), len(run.arrivals)
            panel.bar(begins, items, took, align="edge", color="tab:blue", edgecolor="white")
            panel.text(begins + took / 2, items, str(items), ha="center", va="bottom", size=8)
            for arrived in run.arrivals:
                panel.plot((_ms(arrived), begins), (0, items), color="tab:orange", linewidth=0.6)
        panel.set_title(f"{name}: {mean_ms(runs):.2f} ms on average", loc="left", size=9)
        panel.set_ylim(0, 10)
        panel.set_yticks((0, 4, 8))
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlim(0, 1000 * _LAST_S)
    panels[-1].set_xlabel("ms")
    figure.supylabel("images in the batch", size=9)
    figure.savefig(file, dpi=100)


def _ms(moment: float) -> float:
    return 1000 * (moment - _BEGIN_S)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the batches of four policies over time.")
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    draw(parser.parse_args().file)


if __name__ == "__main__":
    main()
