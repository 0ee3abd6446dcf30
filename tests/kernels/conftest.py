"""Devices for the tests: the CPU simulator everywhere, and a GPU where one answers."""

from collections.abc import Iterator

import pytest

from kernels.device.cuda_device import CudaDevice
from tests.support.kernels.gpu import open_gpu


@pytest.fixture(scope="session")
def cuda_device(pytestconfig: pytest.Config) -> Iterator[CudaDevice]:
    """The GPU; see `open_gpu` for where none answers."""
    device = open_gpu(pytestconfig)
    yield device
    device.synchronize()
