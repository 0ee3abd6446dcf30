"""NVRTC in several threads at the same time, in processes that have not loaded it yet."""

import subprocess
import sys

import pytest

_EIGHT_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from kernels.device import nvrtc
from kernels.device.compile import FLAGS
from kernels.device.device import SOURCE_ROOT

together = threading.Barrier(8, timeout=60)
texts = {file.name: file.read_text() for file in SOURCE_ROOT.iterdir()}
options = ("--gpu-architecture=sm_90a", *FLAGS)

def compile(_):
    together.wait()
    return nvrtc.compile_program(texts["lrn.cu"], "lrn.cu", "lrn<float>", texts, options)

with ThreadPoolExecutor(8) as pool:
    assert all(each.cubin for each in pool.map(compile, range(8)))
"""


@pytest.mark.parametrize("processes", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_eight_threads_may_be_the_first_to_compile(processes: int) -> None:
    for _ in range(processes):
        run = subprocess.run(
            [sys.executable, "-c", _EIGHT_THREADS], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
