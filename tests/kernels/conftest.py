"""Devices for the tests: the CPU simulator everywhere, and a GPU where one answers."""

from collections.abc import Iterator

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.support.kernels.resources import CACHE


@pytest.fixture(scope="session")
def cuda_device() -> Iterator[CudaDevice]:
    """The GPU; a test that asks for it is skipped where none answers."""
    try:
        device = CudaDevice(CACHE)
    except DeviceError as error:
        pytest.skip(str(error))
    yield device
    device.synchronize()
