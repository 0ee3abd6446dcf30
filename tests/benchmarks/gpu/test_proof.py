"""The proof's result for tests that pass, fail, are skipped, hang or crash."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import proof
from benchmarks.gpu.outcomes import BEGAN, PASSED, WAITS, ends_of
from benchmarks.rows import ROOT, read
from kernels.device.device import FaultError
from tests.support import PATIENCE_S
from tests.support.servers.control import until

# Without the plugins that are installed: they take longer than the tests.
OPTIONS = ("-q", "-p", "no:cacheprovider", "--disable-plugin-autoload", "--rootdir")
PYTEST = (sys.executable, "-m", "pytest", *OPTIONS)


def command_of(folder: Path, *bodies: str, hang_s: int = 5) -> list[str]:
    """Return the command for a file of tests with these bodies: test_0, test_1, ...; the time limit
    of a test is longer than a busy machine needs."""
    tests = (f"def test_{number}(): {body}\n" for number, body in enumerate(bodies))
    file = folder / "test_made_up.py"
    file.write_text(f"import os, time, pytest\n{''.join(tests)}")
    hang = ("-o", f"faulthandler_timeout={hang_s}", "-o", "faulthandler_exit_on_timeout=true")
    return [*PYTEST, str(folder), *hang, str(file)]


def ends(out: Path) -> list[str]:
    """Return how each test ended, in the order of the tests."""
    lines = read(out / proof.OUTCOMES)
    found = {
        test: end
        for run in {line["run"] for line in lines}
        for test, end in ends_of(lines, run).items()
    }
    return [found[test] for test in sorted(found)]


_STATUS = "pytest ended with status {}".format


@pytest.mark.parametrize(
    ("bodies", "ended", "outcomes"),
    [
        (["pass", "pass"], _STATUS(0), [PASSED, PASSED]),
        (["assert 0", "pass"], _STATUS(1), ["failed", PASSED]),
        (["pass", "pytest.skip('why')"], _STATUS(0), [PASSED, "skipped"]),
        (["pass", "os._exit(9)", "pass"], _STATUS(0), [PASSED, BEGAN, PASSED]),
        (["pass", "time.sleep(600)", "pass"], _STATUS(0), [PASSED, BEGAN, PASSED]),
        (["pass", "pass", "os._exit(9)"], _STATUS(9), [PASSED, PASSED, BEGAN]),
    ],
    ids=["passed", "failed", "skipped", "died", "hung", "died at the end"],
)
def test_only_tests_that_passed_prove_a_device_and_nothing_stops_the_others(
    bodies: Sequence[str],
    ended: str,
    outcomes: Sequence[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proved = proof.prove(
        {"made up": command_of(tmp_path, *bodies)}, 10 * PATIENCE_S, "abc", tmp_path
    )
    assert proved is (set(outcomes) == {PASSED})
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "PROVED" if proved else last.startswith("NOT PROVED: ")
    (row,) = read(tmp_path / "gpu_proof.jsonl")
    assert (row["commit"], row["proved"], row["ended"]) == ("abc", proved, {"made up": ended})
    assert row["passed"] == outcomes.count(PASSED)
    assert len(row["not_proved"]) == len(outcomes) - outcomes.count(PASSED)
    assert ends(tmp_path) == outcomes


def test_a_lost_device_is_left_to_the_next_process(tmp_path: Path) -> None:
    lost = f"__import__({FaultError.__module__!r}, fromlist='x').FaultError"
    body = f"pid = os.getpid(); open('{tmp_path}/pids', 'a').write(f'{{pid}} ')"
    tests = command_of(tmp_path, body, f"raise {lost}('illegal address')", body, body)
    assert not proof.prove({"made up": tests}, 10 * PATIENCE_S, "abc", tmp_path)
    first, *others = (tmp_path / "pids").read_text().split()
    assert others == [others[0]] * 2
    assert first != others[0]
    assert ends(tmp_path) == [PASSED, "failed", PASSED, PASSED]
    (failed,) = (line for line in read(tmp_path / proof.OUTCOMES) if line["outcome"] == "failed")
    assert failed["why"] == "kernels.device.device.FaultError: illegal address"


def test_a_fixture_that_fails_in_the_end_takes_the_proof_back(tmp_path: Path) -> None:
    tests = command_of(tmp_path, "pass")
    with (tmp_path / "test_made_up.py").open("a") as file:
        file.write("@pytest.fixture\ndef broken():\n    yield\n    assert 0\n")
        file.write("def test_9(broken): pass\n")
    assert not proof.prove({"made up": tests}, 10 * PATIENCE_S, "abc", tmp_path)
    assert ends(tmp_path) == [PASSED, "error"]


def test_a_file_that_cannot_be_imported_is_not_proved_and_stops_no_other(tmp_path: Path) -> None:
    tests = command_of(tmp_path, "pass")
    broken = tmp_path / "test_broken.py"
    broken.write_text("import no_such_module\n")
    assert not proof.prove({"made up": [*tests, str(broken)]}, 10 * PATIENCE_S, "abc", tmp_path)
    (row,) = read(tmp_path / "gpu_proof.jsonl")
    assert (row["passed"], row["not_proved"]) == (1, ["test_broken.py: error"])


def test_without_time_nothing_is_proved_and_what_did_not_begin_is_named(tmp_path: Path) -> None:
    tests = command_of(tmp_path, "pass")
    assert not proof.prove({"a": tests, "b": tests}, 0, "abc", tmp_path)
    (row,) = read(tmp_path / "gpu_proof.jsonl")
    assert row["ended"] == dict.fromkeys("ab", "the time was over")
    assert row["not_proved"] == ["a: waits", "b: waits"]


def test_what_takes_too_long_is_killed_with_all_that_it_started() -> None:
    sleep = "import time; time.sleep(600)"
    program = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
    )
    out, written = os.pipe()  # which ends with the last process that has it
    assert proof.limited([sys.executable, "-c", program], 3, stdout=written) is None
    os.close(written)
    with open(out) as read_end:
        assert read_end.read() == ""
    assert proof.limited([sys.executable, "-c", "raise SystemExit(3)"], 600) == 3


def test_what_had_passed_outlives_the_proof_itself(tmp_path: Path) -> None:
    """The process is killed with all processes that it started, by a signal that none can catch."""
    tests = command_of(tmp_path, "pass", "pass", "time.sleep(600)", "pass", hang_s=600)
    program = (
        "import sys; from pathlib import Path; from benchmarks.gpu.proof import prove;"
        f"prove({{'made up': sys.argv[1:]}}, 600, 'abc', Path({str(tmp_path)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, *tests], cwd=ROOT)
    until(lambda: ends(tmp_path) == [PASSED, PASSED, BEGAN, WAITS])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert ends(tmp_path) == [PASSED, PASSED, BEGAN, WAITS]


def test_every_test_that_needs_a_gpu_is_in_a_group() -> None:
    marked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in file.read_text(encoding="utf-8") and file != Path(__file__)
    }
    tests = tuple(test for group in proof.GROUPS.values() for test in group.tests)
    assert marked
    assert not [file for file in marked if not file.startswith(tests)]
