"""The proof: what it says of tests that pass, fail, are skipped, hang or die."""

import sys
from pathlib import Path

import pytest

from benchmarks.gpu import proof
from benchmarks.rows import ROOT, read

# Without the plugins that are installed: they take longer than the tests.
OPTIONS = ("-q", "-p", "no:cacheprovider", "--disable-plugin-autoload", "--rootdir")
PYTEST = (sys.executable, "-m", "pytest", *OPTIONS)


def command_of(folder: Path, body: str) -> list[str]:
    """The command for a file of two tests, the second with this body."""
    file = folder / "test_made_up.py"
    file.write_text(f"import os, time, pytest\ndef test_a(): pass\ndef test_b(): {body}\n")
    return [*PYTEST, str(folder), str(file)]


@pytest.mark.parametrize(
    ("body", "seconds", "ended", "passed", "wrong"),
    [
        ("pass", 60, "pytest ended with status 0", 2, []),
        ("assert 0", 60, "pytest ended with status 1", 1, ["test_made_up::test_b: failure"]),
        (
            "pytest.skip()",
            60,
            "pytest ended with status 0",
            1,
            ["test_made_up::test_b: skipped"],
        ),
        ("os._exit(9)", 60, "pytest ended with status 9", 0, []),
        ("time.sleep(60)", 3, "3 s were over", 0, []),
    ],
    ids=["passed", "failed", "skipped", "died", "hung"],
)
def test_only_tests_that_passed_prove_a_device(
    body: str,
    seconds: float,
    ended: str,
    passed: int,
    wrong: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proved = proof.prove(command_of(tmp_path, body), seconds, "abc", tmp_path)
    assert proved is (passed == 2)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "PROVED" if proved else last.startswith(f"NOT PROVED: {ended}")
    (row,) = read(tmp_path / "gpu_proof.jsonl")
    assert (row["commit"], row["proved"], row["ended"]) == ("abc", proved, ended)
    assert (row["passed"], row["not_proved"]) == (passed, wrong)


def test_every_test_that_needs_a_gpu_is_run() -> None:
    marked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in file.read_text(encoding="utf-8") and file != Path(__file__)
    }
    assert marked
    assert not [file for file in marked if not file.startswith(proof.TESTS)]
