"""Writes the outcome of each test as it ends: `pytest -p benchmarks.gpu.outcomes --outcomes FILE`.

If the process is killed, the file has the outcome of each test that had ended. The test that was
running is recorded as begun, and the tests after it as waiting. A second process with the same file
and the same --outcomes-of skips all tests that have begun, and continues after the test that
stopped the first process.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rows import Row, append, read
from kernels.device.device import FaultError

if TYPE_CHECKING:  # this module is also imported where pytest is not installed
    import pytest

WAITS, BEGAN, PASSED = "waits", "began", "passed"


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the options --outcomes and --outcomes-of to pytest."""
    parser.addoption("--outcomes", type=Path, help="file to which outcomes are appended")
    parser.addoption("--outcomes-of", help="name of the run, in each line")


def pytest_configure(config: "pytest.Config") -> None:
    """If the option --outcomes names a file, register the plugin that writes outcomes to it."""
    if file := config.getoption("--outcomes"):
        config.pluginmanager.register(_Writer(file, config.getoption("--outcomes-of")))


class _Writer:
    def __init__(self, file: Path, run: str) -> None:
        self._file, self._run = file, run
        ends = ends_of(read(file), run)
        self._begun = {test for test, outcome in ends.items() if outcome != WAITS}

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        if report.failed:
            self._add(report.nodeid, "error", why=_why(report))

    def pytest_collection_modifyitems(
        self, config: "pytest.Config", items: list["pytest.Item"]
    ) -> None:
        begun = [item for item in items if item.nodeid in self._begun]
        items[:] = [item for item in items if item.nodeid not in self._begun]
        config.hook.pytest_deselected(items=begun)

    def pytest_collection_finish(self, session: "pytest.Session") -> None:
        every = (self._line(item.nodeid, WAITS) for item in session.items)
        append(self._file, every)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add(nodeid, BEGAN)

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        if report.when == "call" or not report.passed:
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            why = {} if report.passed else {"why": _why(report)}
            self._add(report.nodeid, outcome, seconds=round(report.duration, 3), **why)

    def pytest_exception_interact(
        self, node: "pytest.Item | pytest.Collector", call: "pytest.CallInfo[Any]"
    ) -> None:
        """Stop after this test if it raised FaultError, because the GPU accepts no more work from
        this process. The next process runs the remaining tests."""
        if call.excinfo is not None and isinstance(call.excinfo.value, FaultError):
            node.session.shouldstop = f"the device is lost: {call.excinfo.value}"

    def _add(self, test: str, outcome: str, **more: object) -> None:
        append(self._file, [self._line(test, outcome, **more)])

    def _line(self, test: str, outcome: str, **more: object) -> Row:
        return {"run": self._run, "test": test, "outcome": outcome, **more}


def _why(report: "pytest.TestReport | pytest.CollectReport") -> str:
    """Return the last line that pytest would print for a test: the error, or the reason for a
    skip."""
    text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines or [""])[0][:300]


def ends_of(lines: Iterable[Row], run: str) -> dict[str, str]:
    """Return the latest outcome of each test of a run, by the test's name. Tests that have not
    ended have the outcome WAITS or BEGAN. A test that passes and whose fixtures then fail counts as
    failed."""
    ends: dict[str, str] = {}
    for line in lines:
        if line["run"] == run and ends.get(line["test"]) in (None, WAITS, BEGAN, PASSED):
            ends[line["test"]] = line["outcome"]
    return ends
