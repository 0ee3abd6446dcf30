"""Without a GPU, tests that need one are skipped, or fail if a GPU was requested."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.kernels import conftest
from tests.support import ROOT
from tests.support.cases import CASES

_ONE_TEST = "tests/kernels/device/test_cuda_device.py::test_a_kernel_tells_its_registers_and_spills"


@pytest.mark.parametrize(("marks", "status", "said"), [("", 0, "1 skipped"), ("gpu", 1, "1 error")])
def test_no_gpu_is_a_failure_only_where_one_was_asked_for(
    marks: str, status: int, said: str
) -> None:
    try:
        CudaDevice()
    except DeviceError:
        pass
    else:
        pytest.skip("here a GPU answers")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, _ONE_TEST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, said in run.stdout) == (status, True), run.stdout


@pytest.mark.parametrize("collects", [False, True])
def test_what_a_gpu_will_run_is_compiled_before_the_time_of_a_test_counts(
    collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(conftest, "CudaDevice", lambda: SimpleNamespace(architecture="90a"))
    monkeypatch.setattr(conftest, "compile_all", lambda *given: compiled.append(given))

    def test_of(case: Any, *fixtures: str) -> Any:
        return SimpleNamespace(
            fixturenames=fixtures, callspec=SimpleNamespace(params={"case": case})
        )

    items = [test_of(CASES[0], "case", "cuda_device"), test_of(CASES[-1], "case", "every_order")]
    config = SimpleNamespace(option=SimpleNamespace(collectonly=collects))
    session: Any = SimpleNamespace(items=[*items, SimpleNamespace()], config=config)
    conftest.pytest_collection_finish(session)
    launched = {launch.instantiation for launch in CASES[0].launches}
    assert [given[:2] for given in compiled] == [(launched, ["90a"])] * (not collects)
