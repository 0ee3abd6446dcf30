"""docs/papers.md equals the output of a fresh run, and every row has its command."""

import io
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from rich.console import Console

from benchmarks.gpu.commands import parse_arguments
from benchmarks.gpu.units import units
from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels.report import Goal
from benchmarks.kernels.suites import MEASURED, NAMED, PAPERS_BATCHES, VGG_E
from benchmarks.papers import __main__ as papers
from benchmarks.papers import measured
from benchmarks.papers.__main__ import PAGE, PAPERS, TABLES, page, show
from benchmarks.papers.lavin_gray import TABLE_5, TABLE_6
from benchmarks.papers.result import OURS, Result, Status
from benchmarks.rows import Row
from tests.support import ROOT
from tests.support.benchmarks.made_up import row, rows_of
from tests.support.networks import SHARED

Every = Mapping[str, Sequence[Result]]


@pytest.fixture(scope="module")
def every() -> Every:
    """Return all rows, which take seconds to compute."""
    return {paper: of() for paper, of in PAPERS.items()}


def all_of(every: Every) -> list[Result]:
    return [result for found in every.values() for result in found]


BY_MACHINE = re.compile(r"times direct's|^\| (whole numbers|with reciprocals) ")
"""The lines whose numbers depend on the order in which a machine's NumPy adds products."""


def test_the_page_is_what_a_fresh_run_prints(every: Every) -> None:
    def without(line: str) -> str:
        return re.sub(r"\d+\.\d+e[+-]\d+|\d+ times", "", line) if BY_MACHINE.search(line) else line

    there, here = (
        [without(line) for line in text.splitlines()]
        for text in (PAGE.read_text(encoding="utf-8"), page(every))
    )
    assert there == here, "make papers writes it"


def test_a_rows_command_exists(every: Every) -> None:
    names = [str(unit) for unit in units()]
    for result in all_of(every):
        words = shlex.split(result.command)
        assert words[:2] == ["python", "-m"], result
        module, *arguments = words[2:]
        if module == "benchmarks.papers":
            assert arguments[0] in TABLES, result
        elif module == "benchmarks.kernels":
            kernels.parse_arguments(arguments)
        elif module == "pytest":
            assert (ROOT / arguments[0]).is_file(), result
        else:
            assert module == "benchmarks.gpu", result
            only = parse_arguments(arguments).only
            assert any(re.search(only, name) for name in names), result


def test_a_row_without_its_command_or_its_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="add the command that shows b"):
        Result("a", "b", "1", "1", Status.REPRODUCED, "")
    with pytest.raises(ValueError, match="contradicted; say why"):
        Result("a", "b", "1", "2", Status.CONTRADICTED, OURS)


def test_no_row_is_missing_and_only_a_gpus_wait(every: Every) -> None:
    results = all_of(every)
    assert len(results) > 120
    assert len({(each.where, each.what) for each in results}) == len(results)
    for result in results:
        waits = result.ours == measured.WAITS
        assert waits is (result.status is Status.NEEDS_GPU), result
        assert not waits or "benchmarks.gpu" in result.command


@pytest.mark.parametrize("table", [TABLE_5, TABLE_6], ids=["fp32", "fp16"])
def test_the_papers_speeds_agree_with_each_other(
    table: dict[int, tuple[float, float, float, float, float]],
) -> None:
    flops = sum(2e-9 * layer.count * layer.problem.macs for layer in VGG_E)
    for n, (cudnn, cudnn_rate, ms, rate, speedup) in table.items():
        assert cudnn_rate == pytest.approx(n * flops / cudnn, rel=6e-3)
        assert rate == pytest.approx(n * flops / ms, rel=6e-3)
        assert speedup == pytest.approx(cudnn / ms, abs=0.011)


def test_what_a_gpu_measured_takes_the_place_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = rows_of(VGG_E, 1, lambda _: 3)
    for named in NAMED:
        rows += rows_of([named.layer], named.n, lambda _: 2)
    monkeypatch.setattr(measured, "_rows", lambda: rows)

    first, second = (
        measured.of_total("table 5", "", "vgg-e", n, "2.26×", 2.26, "layer") for n in (1, 2)
    )
    assert (first.status, first.ours.split(", ")[1]) == (Status.BETTER, "3.00×")
    assert second.ours == measured.WAITS
    (named_row,) = (each for each in measured.named() if each.where == "cuConv, table 5, A")
    assert named_row.status is Status.IN_PART, "2.00 of 3.32"
    assert "2.00× cudnn" in named_row.ours
    goal = Goal("vgg-e", (1,), "of_peak", 1.0)
    row = measured.of_goal("section 8", "of peak", "1.01", "layer", goal)
    assert (row.ours, row.status) == ("0.50", Status.IN_PART)


def every_row(batches: Sequence[int] | None = None) -> list[Row]:
    """Return rows of all layers that the papers time, at these N or at all N of the papers."""
    rows: list[Row] = []
    for suite, layers in MEASURED.items():
        for n in PAPERS_BATCHES[suite]:
            if batches is None or n in batches:
                rows += rows_of(layers, n, lambda layer: 2 + layer.problem.c / 1024)
                us = [each for each in rows if each["side"] == "convoy"][-len(layers) :]
                rows += [
                    row(layer, n, "im2col", 4 * ours["p50_us"])
                    for layer, ours in zip(layers, us, strict=True)
                ]
    return [{**each, "workspace_bytes": 10**9 * (each["side"] == "cudnn")} for each in rows]


def gpus(monkeypatch: pytest.MonkeyPatch, rows: list[Row]) -> dict[tuple[str, str], Result]:
    """Return the page's rows that wait for a GPU, with the values that they would have after these
    measurements."""
    monkeypatch.setattr(measured, "_rows", list)
    waiting = [
        (each.where, each.what)
        for of in PAPERS.values()
        for each in of()
        if each.status is Status.NEEDS_GPU
    ]
    monkeypatch.setattr(measured, "_rows", lambda: rows)
    now = {(each.where, each.what): each for of in PAPERS.values() for each in of()}
    return {key: now[key] for key in waiting}


def test_every_row_that_waits_reads_its_number_from_the_rows_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = gpus(monkeypatch, every_row())
    assert len(found) == 47
    for result in found.values():
        assert result.status in (Status.BETTER, Status.IN_PART), result
        assert measured.WAITS not in result.ours
        assert "wait" not in result.why
    ours = {what: result.ours for (_, what), result in found.items()}
    assert ours["mean speed-up of table 5: 3.41"] == f"{mean_of_totals():.2f}×"
    assert ours["speed-ups of 1×1 by N"].startswith(f"{mean_of_ones():.2f}× at N = 1, ")
    assert ours["speed-ups of 5×5 by N"].count(" at N = ") == 7
    assert ours["im2col's time compared with Winograd's"] == "4.00× as fast, at least 4.00×"
    assert ours["the GPU"] == "made up"
    assert ours["cuDNN's workspace"] == "1.00 GB"
    assert ours["utilisation of compute and memory units"] == "50% of the peak arithmetic"
    rates = ours["effective TFLOPS by layer and N; FFT and FX hatched"]
    assert rates.startswith("30.0 to 30.0 at N = 1, ")
    assert "30.0 TFLOPS, 2.50×" in ours["conv 5 at N = 1 is the slowest"]


def mean_of_ones() -> float:
    """Return the geometric mean of the made-up speed-ups of cuConv's 1×1."""
    ones = [layer for layer in MEASURED["cuconv"] if layer.problem.window.kernel == (1, 1)]
    return float(np.exp(np.mean(np.log([2 + layer.problem.c / 1024 for layer in ones]))))


def mean_of_totals() -> float:
    """Return the made-up speed-up of all of VGG-E, the same at every N."""
    macs = [layer.count * layer.problem.macs for layer in VGG_E]
    return float(np.average([2 + layer.problem.c / 1024 for layer in VGG_E], weights=macs))


def test_a_row_of_several_n_says_which_of_them_still_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpus(monkeypatch, every_row([1, 8]))
    for what, left in {
        "speed-ups of 1×1 by N": "N = 16, 32, 64 wait",
        "speed-ups of 3×3 by N": "N = 16 wait",
        "mean speed-up of table 5: 3.41": "N = 2, 4, 16, 32, 64 wait",
        "effective TFLOPS by layer and N; FFT and FX hatched": "N = 2, 4, 16, 32, 64 wait",
    }.items():
        (result,) = (each for (_, of), each in found.items() if of == what)
        assert (result.status, result.why) == (Status.IN_PART, left)
        assert result.ours != measured.WAITS
    waits = [key for key, each in found.items() if each.status is Status.NEEDS_GPU]
    assert ("figure 5", "all four layers, N = 32: SGEMM, FFT, 3-D Winograd") in waits
    assert ("table 5", "VGG-E, N = 64: time and effective TFLOPS of cuDNN and of F(2×2)") in waits


def test_the_figures_have_a_row_for_each_filter_size_and_n(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_rows", list)
    _, *waiting = measured.table_figures()
    assert [each[:3] for each in waiting] == [
        (where, f"{size}×{size}", str(n))
        for where, (size, batches, _) in measured.FIGURES.items()
        for n in batches
    ]
    assert sum(int(each[3]) for each in waiting if each[2] == "1") == len(MEASURED["cuconv"])
    assert {each[4:] for each in waiting} == {("0", *["waits"] * 4)}
    monkeypatch.setattr(measured, "_rows", lambda: every_row([1]))
    _, first, second, *_ = measured.table_figures()
    assert first[4:] == (first[3], "2.02×", f"{mean_of_ones():.2f}×", "4.00×", "100%")
    assert second[4:] == ("0", *["waits"] * 4)


TEXTS = dict(
    zip(
        PAPERS,
        (
            "lavin-gray-2015-winograd.txt",
            "cuconv-2021-coalesced-direct.txt",
            "soutar-2020-winograd-blog.txt",
            "lan-2017-3d-winograd.txt",
        ),
        strict=True,
    )
)

DERIVED = {
    *("1.01", "1.36"),  # TFLOPS of table 5 over the Titan X's peak
    *("1.83", "0.61", "0.85", "0.50", "3.32", "0.66"),  # one time over another
    *("25", "216", "3.375"),  # of 50 pixels by tiles of 2; 6 × 6 × 6 over 4 × 4 × 4
}
"""Numbers of rows that are computed from other printed numbers."""


@pytest.mark.skipif(not (SHARED / "seeds").is_dir(), reason="needs the papers' texts")
@pytest.mark.parametrize("paper", TEXTS)
def test_the_papers_numbers_are_in_its_text(paper: str, every: Every) -> None:
    text = (SHARED / "seeds" / TEXTS[paper]).read_text(encoding="utf-8")
    number = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?(?:[eE][+-]\d+)?"
    printed = {float(each.replace(",", "")) for each in re.findall(number, text)}
    for result in every[paper]:
        for each in re.findall(number, result.theirs):
            # Cells of Lan's tables are printed without a space between them.
            known = each in DERIVED or float(each.replace(",", "")) in printed or each in text
            assert known, (each, result)


def test_a_table_is_printed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    papers.main(["fft"])
    assert "17.88" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        papers.main([])
    out = io.StringIO()
    show("sizes", Console(file=out, width=120))
    assert "GoogLeNet" in out.getvalue()
