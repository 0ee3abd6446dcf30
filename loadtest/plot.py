"""Latency over throughput, as a PNG; needs Matplotlib, of the extra `loadtest`."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.summary import PERCENTILES, Summary


def plot(
    summaries: Sequence[Summary], file: Path, *, title: str, bound_ms: float | None = None
) -> None:
    """A line a percentile, through the loads from the least to the most. Raises OSError.

    Beyond what a server can do a line may turn back: more is asked, and less answered.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    measured = sorted((each for each in summaries if each.answered), key=_size)
    rates = [each.throughput for each in measured]
    sound = [not each.failed and not each.client_limited for each in measured]
    for name in PERCENTILES:
        latencies = [each.latency_ms[name] or 0.0 for each in measured]
        (line,) = panel.plot(rates, latencies, label=name)
        for hollow in (False, True):
            places = [i for i, is_sound in enumerate(sound) if is_sound is not hollow]
            panel.plot(
                [rates[i] for i in places],
                [latencies[i] for i in places],
                "o",
                color=line.get_color(),
                fillstyle="none" if hollow else "full",
            )
    if not all(sound):
        panel.plot([], [], "ko", fillstyle="none", label="with errors, or client the limit")
    if bound_ms is not None:
        panel.axhline(bound_ms, color="black", linewidth=0.8, linestyle="--")
        panel.text(0, bound_ms, " bound for p99", va="bottom", fontsize="small")
    panel.set_xlim(left=0)
    panel.set_yscale("log")
    panel.set_xlabel("good answers a second")
    panel.set_ylabel("latency from the intended moment, ms")
    panel.grid(visible=True, which="both", linewidth=0.3)
    panel.set_title(title, loc="left", fontsize="medium")
    panel.legend()
    figure.savefig(file, dpi=120)


def _size(summary: Summary) -> float:
    return summary.load.rate or summary.load.clients or 0.0
