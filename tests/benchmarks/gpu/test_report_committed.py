"""The committed report, and the README's section, are made from the committed rows."""

from pathlib import Path

from benchmarks.gpu.report import into_readme, results, section
from benchmarks.rows import RESULTS, read
from tests.benchmarks.gpu.test_report import DEVICE
from tests.support import ROOT


def test_the_committed_readme_and_results_are_those_of_the_committed_lines(tmp_path: Path) -> None:
    lines = read(RESULTS / "gpu.jsonl")
    readme = (ROOT / "README.md").read_text()
    assert into_readme(readme, section(lines)) == readme
    assert (RESULTS.parent / "RESULTS.md").read_text() == results(lines, tmp_path)


def test_no_committed_row_is_made_up() -> None:
    for file in RESULTS.glob("gpu*.jsonl"):
        assert all(row["device"] != DEVICE for row in read(file))
