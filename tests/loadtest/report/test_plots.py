"""Plots of results."""

import io
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from loadtest.subject import Subject
from loadtest.summary import Load
from tests.loadtest.report.measured import GOOD, NO_LATENCY, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAST = replace(GOOD, load=Load(rate=100), throughput=100.0)


@pytest.fixture(scope="module")
def plots() -> Any:
    """Return the module that draws. Matplotlib takes a second to import, so only processes that
    run these tests import it."""
    return import_module("loadtest.report.plots")


def drawn(figure: "Figure") -> Image.Image:
    file = io.BytesIO()
    figure.savefig(file, dpi=120)
    return Image.open(file)


def lines(figure: "Figure") -> list[str]:
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_a_plot_is_drawn_with_loads_that_failed(plots: Any) -> None:
    bad = replace(GOOD, load=Load(rate=100), throughput=60.0, errors={"429": 10})
    silent = replace(GOOD, answered=0, latency_ms=NO_LATENCY)
    figure = plots.latency_plot([run("one", bad, silent, GOOD)], bound_ms=50)
    with drawn(figure) as image:
        assert image.size == (960, 600)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 100
    noted = ["with errors, or limited by the client", "bound on p99"]
    assert lines(figure) == ["p50", "p90", "p99", *noted]  # 500 answers are too few for p99.9


def test_milliseconds_are_written_without_powers(plots: Any) -> None:
    slow = replace(FAST, latency_ms={**GOOD.latency_ms, "p99": 2345.6})
    figure = plots.latency_plot([run("one", GOOD, slow)])
    drawn(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"1", "2", "5", "10", "1,000", "2,000"} <= set(labels)
    assert not [label for label in labels if "^" in label or "e" in label]


def test_the_title_has_model_device_and_machine_once_where_all_runs_share_them(plots: Any) -> None:
    shared = plots.latency_plot([run("one", GOOD), run("two", FAST)]).axes[0].get_title(loc="left")
    assert shared == "digits, cpu (ONNX Runtime 1.23), EPYC, 2 cores"
    other = run("two", FAST, subject=Subject("digits", "NVIDIA H200", "EPYC, 16 cores"))
    differing = plots.latency_plot([run("one", GOOD), other]).axes[0].get_title(loc="left")
    assert differing.splitlines() == [f"one: {shared}", "two: digits, NVIDIA H200, EPYC, 16 cores"]


def test_several_runs_have_a_colour_each(plots: Any) -> None:
    figure = plots.latency_plot([run("before", GOOD, FAST), run("after", GOOD, FAST)])
    assert lines(figure) == ["before, p50", "before, p99", "after, p50", "after, p99"]
    colours = [line.get_color() for line in figure.axes[0].get_lines()]
    assert len(set(colours[:2])) == len(set(colours[2:])) == 1
    assert colours[0] != colours[2]


def test_the_phases_of_each_load_are_a_bar(plots: Any) -> None:
    phases = {name: {"p50": 1.0, "p99": 2.0} for name in ("receive", "decode", "queue", "compute")}
    each = replace(GOOD, phases_ms={**phases, "respond": {"p50": 0.5, "p99": 1.0}})
    figure = plots.phase_plot([run("one", each, replace(each, load=Load(clients=8)))])
    drawn(figure)
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["50/s", "8 clients"]
    assert panel.dataLim.x1 == 4.5
