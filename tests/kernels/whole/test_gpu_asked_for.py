"""Tests that need a GPU where none answers: skipped, unless a GPU was asked for."""

import subprocess
import sys

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.support import ROOT

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
