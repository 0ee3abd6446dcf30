"""docs/papers.md: every row has its command, and is what a fresh run prints."""

import io
import re
import shlex
from collections.abc import Mapping, Sequence

import pytest
from rich.console import Console

from benchmarks.gpu.commands import parse_arguments
from benchmarks.gpu.units import units
from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels.report import Goal
from benchmarks.kernels.suites import NAMED, VGG_E
from benchmarks.papers import __main__ as papers
from benchmarks.papers import measured
from benchmarks.papers.__main__ import PAGE, PAPERS, TABLES, page, show
from benchmarks.papers.lavin_gray import TABLE_5, TABLE_6
from benchmarks.papers.result import OURS, Result, Status
from benchmarks.rows import Row
from tests.support import ROOT
from tests.support.benchmarks.made_up import rows_of

Every = Mapping[str, Sequence[Result]]


@pytest.fixture(scope="module")
def every() -> Every:
    """All rows, which take seconds to make."""
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
    with pytest.raises(ValueError, match="no command shows b"):
        Result("a", "b", "1", "1", Status.REPRODUCED, "")
    with pytest.raises(ValueError, match="contradicted, but why"):
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


def test_a_table_is_printed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    papers.main(["fft"])
    assert "17.88" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        papers.main([])
    out = io.StringIO()
    show("sizes", Console(file=out, width=120))
    assert "GoogLeNet" in out.getvalue()
