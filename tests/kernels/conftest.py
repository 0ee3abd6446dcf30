"""Devices for the tests: the CPU simulator everywhere, and a GPU where one answers."""

from collections.abc import Iterator

import pytest

from kernels.device.compile import compile_all
from kernels.device.cuda_device import CudaDevice
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels.gpu import open_gpu
from tests.support.kernels.resources import CACHE


@pytest.fixture(scope="session")
def cuda_device(pytestconfig: pytest.Config) -> Iterator[CudaDevice]:
    """The GPU, with the cases' kernels compiled on all cores; see `open_gpu` for where none is."""
    device = open_gpu(pytestconfig)
    compile_all(INSTANTIATIONS, [device.architecture], CACHE)
    yield device
    device.synchronize()
