"""Proves by the tests marked `gpu`, from kernels to server, that this GPU computes correctly.

docs/gpu-day.md begins with it. The tests run in a process of their own, which may hang or die; what
has not passed by then is not proved.
"""

import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu import carried
from benchmarks.gpu.clocks import clocks
from benchmarks.rows import ROOT, Row, append, now, where
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError

TESTS = (
    "tests/kernels",
    "tests/models/engines",
    "tests/benchmarks/kernels/test_sides_on_a_gpu.py",
    "tests/service/whole/test_gpu_server.py",
)
"""The folders of the tests marked `gpu`; others need packages that a GPU machine may lack."""

_HANG_S = 120  # of one test; the first one compiles every kernel


def command() -> list[str]:
    """Return the command that runs the tests."""
    limits = ("-o", f"faulthandler_timeout={_HANG_S}", "-o", "faulthandler_exit_on_timeout=true")
    options = ("-m", "gpu", "-p", "no:cacheprovider", "--maxfail", "25", *limits)
    return [*carried.python(), "-m", "pytest", *options, *TESTS]


def prove(tests: Sequence[str], seconds: float, commit: str, out: Path) -> bool:
    """Run the tests for at most `seconds`, add a row to `out`, and return whether all passed.

    A skipped test is not proved either.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        try:
            status = subprocess.run(
                [*tests, f"--junit-xml={report}"], cwd=ROOT, timeout=seconds, check=False
            ).returncode
            ended = f"pytest ended with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"{seconds:g} s were over"
        outcomes = _outcomes(report) if report.is_file() else {}
    counted = Counter(outcomes.values())
    wrong = [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome != "passed"]
    proved = bool(outcomes) and not wrong and status == 0
    print("PROVED" if proved else f"NOT PROVED: {ended}, {dict(counted) or 'nothing shown'}")
    row: Row = {
        **_place(commit),
        **clocks(),
        "kind": "proof",
        "date": now(),
        "commit": commit,
        "proved": proved,
        "ended": ended,
        "passed": counted["passed"],
        "not_proved": wrong,
    }
    append(out / "gpu_proof.jsonl", [row])
    return proved


def _outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test by its name."""
    cases = ET.parse(report).iter("testcase")
    return {
        f"{case.get('classname')}::{case.get('name')}": next(
            (child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"
        )
        for case in cases
    }


def _place(commit: str) -> Row:
    try:
        return where(CudaDevice(), commit)
    except DeviceError as error:
        return {"device": f"none answers: {error}"}
