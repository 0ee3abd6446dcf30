"""Reports of made-up rows."""

import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.kernels.plots import plot_rates, plot_speedups
from benchmarks.kernels.report import GOALS, Goal, compare, reached, summarise
from benchmarks.kernels.suites import C3D, CUCONV, MEASURED, PAPERS_BATCHES, SUITES, VGG_E
from benchmarks.plots import NoMatplotlibError
from benchmarks.rows import append, read
from tests.support.benchmarks.made_up import row, rows_of

FIRST, SECOND, *_ = VGG_E
PAIR = (FIRST, SECOND)


def test_a_layer_is_compared_with_whichever_other_side_is_fastest() -> None:
    rows = [
        row(FIRST, 1, "convoy", 10),
        row(FIRST, 1, "torch", 30),
        row(FIRST, 1, "cudnn", 20),
    ]
    (comparison,) = compare(rows, PAIR, 1, "warm")
    assert comparison.layer is FIRST
    assert comparison.best["side"] == "cudnn"
    assert comparison.speedup == 2


def test_rows_of_another_n_another_state_of_the_cache_and_estimates_do_not_count() -> None:
    rows = [
        row(FIRST, 1, "convoy", 10),
        row(FIRST, 2, "cudnn", 20),
        row(FIRST, 1, "cudnn", 20, cache="cold"),
        row(FIRST, 1, "cudnn", 20, kind="estimate"),
        row(SECOND, 1, "cudnn", 20),
    ]
    assert compare(rows, PAIR, 1, "warm") == []
    assert compare(rows, PAIR, 1, "cold") == []
    assert compare(rows, PAIR, 2, "warm") == []


def test_of_equal_rows_the_last_counts() -> None:
    rows = [row(FIRST, 1, "convoy", 10), row(FIRST, 1, "cudnn", 20), row(FIRST, 1, "convoy", 5)]
    (comparison,) = compare(rows, PAIR, 1, "warm")
    assert comparison.speedup == 4


def test_a_summary_weighs_times_by_depth_and_speed_ups_not_at_all() -> None:
    layers = (VGG_E[1], VGG_E[8])  # once, and four times
    rows = [
        row(layers[0], 1, "convoy", 100),
        row(layers[0], 1, "cudnn", 50),
        row(layers[1], 1, "convoy", 10),
        row(layers[1], 1, "cudnn", 80),
    ]
    summary = summarise(compare(rows, VGG_E, 1, "warm"), len(VGG_E))
    assert (summary.measured, summary.layers) == (2, 9)
    assert summary.geometric_mean == pytest.approx(2)  # of 0.5 and 8
    assert summary.least == 0.5
    assert summary.won == 0.5
    flops = 2 * layers[0].problem.macs + 4 * 2 * layers[1].problem.macs
    assert summary.of_peak == pytest.approx(flops / (100e-6 + 4 * 10e-6) / 60e12)


def test_a_layer_at_half_the_peak_is_at_half_the_peak_for_any_n() -> None:
    for n in (1, 8):
        comparisons = compare(rows_of(CUCONV, n, lambda _: 2), CUCONV, n, "warm")
        assert len(comparisons) == len(CUCONV)
        assert all(each.of_peak == pytest.approx(0.5) for each in comparisons)
        assert all(each.speedup == pytest.approx(2) for each in comparisons)


def goal(suite: str, n: int, measure: str, kernel: int | None = None) -> Goal:
    wanted = (suite, (n,), measure, kernel, None)
    (found,) = (
        each
        for each in GOALS
        if (each.suite, each.batches, each.measure, each.kernel, each.layer) == wanted
    )
    return found


def test_a_goal_is_reached_by_its_own_layers_and_by_all_of_them() -> None:
    def speedup(layer: object) -> float:
        return 3 if "-5-" in getattr(layer, "name", "") else 1

    rows = rows_of(CUCONV, 1, speedup)
    fives = goal("cuconv", 1, "geometric_mean", 5)
    assert len(fives.layers) == 9
    assert reached(rows, fives, "warm") == pytest.approx(3)
    assert reached(rows, goal("cuconv", 1, "geometric_mean", 1), "warm") == pytest.approx(1)
    assert reached(rows, goal("cuconv", 1, "won"), "warm") == pytest.approx(9 / 97)
    assert reached(rows, goal("cuconv", 8, "geometric_mean"), "warm") is None
    assert reached(rows, fives, "cold") is None
    assert str(fives) == "cuconv 5×5 at N = 1, geometric mean of the speed-ups"
    # One layer missing, and nothing is said of the suite.
    missing = [each for each in rows if each["problem"] != str(CUCONV[0].problem)]
    assert reached(missing, goal("cuconv", 1, "geometric_mean"), "warm") is None


def test_the_goals_are_the_papers_and_the_projects() -> None:
    rows = rows_of(VGG_E, 1, lambda _: 2) + rows_of(C3D, 4, lambda layer: layer.problem.c / 32)
    assert reached(rows, goal("vgg-e", 1, "of_peak"), "warm") == pytest.approx(0.5)
    assert reached(rows, goal("c3d", 4, "least"), "warm") == pytest.approx(1)  # the least


def test_every_suite_with_comparisons_gets_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib draws the plots")
    rows = rows_of(VGG_E, 1, lambda _: 2) + rows_of(VGG_E, 8, lambda _: 1, "cold")
    rows += rows_of(VGG_E, 8, lambda _: 1.2) + rows_of(CUCONV, 1, lambda _: 1.5)
    files = plot_speedups(rows, tmp_path / "plots")
    assert [file.name for file in files] == ["vgg-e.png", "cuconv.png"]
    for file in files:
        image = Image.open(file).convert("L")
        assert image.width > 600
        assert len(set(image.resize((50, 50)).tobytes())) > 10  # something is drawn
    assert plot_speedups([], tmp_path) == []


def test_without_matplotlib_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NoMatplotlibError, match="pip install matplotlib"):
        plot_speedups(rows_of(VGG_E, 1, lambda _: 2), tmp_path)


def test_rows_are_read_as_they_were_written_and_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.jsonl"
    assert read(file) == []
    rows = rows_of(PAIR, 1, lambda _: 2)
    append(file, rows[:2])
    append(file, rows[2:])
    assert read(file) == rows
    with file.open("a") as opened:
        opened.write('{"kind": "measu')
    assert read(file) == rows
    append(file, rows[:1])
    assert read(file) == [*rows, rows[0]]


def test_every_goal_has_layers() -> None:
    assert {goal.suite for goal in GOALS} == set(SUITES)
    assert all(goal.layers for goal in GOALS)
    assert all(len(goal.layers) == 1 for goal in GOALS if goal.layer)


def test_the_papers_goals_are_over_all_their_n_and_of_the_layers_that_they_name() -> None:
    batches = PAPERS_BATCHES["cuconv"]
    rows = rows_of(CUCONV, 1, lambda layer: 2 if layer is CUCONV[0] else 0.5)
    rows += [each for n in batches[1:] for each in rows_of(CUCONV, n, lambda _: 0.5)]
    won, mean = (
        next(each for each in GOALS if each.batches == batches and each.measure == measure)
        for measure in ("won", "mean_of_won")
    )
    assert (won.at_least, mean.at_least) == (0.0831, 1.46)
    assert reached(rows, won, "warm") == pytest.approx(1 / (7 * 97))
    assert reached(rows, mean, "warm") == pytest.approx(2)
    assert reached(rows[2:], won, "warm") is None
    (best,) = (each for each in GOALS if each.layer == "7-1-32-832")
    assert best.at_least == 2.29
    assert reached(rows, best, "warm") == pytest.approx(0.5)
    assert str(best) == "cuconv 7-1-32-832 at N = 1, geometric mean of the speed-ups"
    assert 7 * len(CUCONV) > 600, "as many configurations as the paper says"


def test_rates_over_n_are_drawn_for_each_precision_with_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib draws the plots")
    half = MEASURED["vgg-e fp16"]
    assert plot_rates([], tmp_path) == []
    rows = [each for n in (1, 64) for each in rows_of(VGG_E, n, lambda _: 2)]
    rows += rows_of(half, 16, lambda _: 2)
    files = plot_rates(rows, tmp_path)
    assert [file.name for file in files] == ["vgg-e-tflops.png", "vgg-e-fp16-tflops.png"]
    assert all(Image.open(file).width > 600 for file in files)
