"""Opens the GPU that tests marked `gpu` run on."""

from pathlib import Path

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.support.kernels.resources import CACHE


def open_gpu(config: pytest.Config, cache: Path = CACHE) -> CudaDevice:
    """Return the GPU. Without one the test is skipped, or fails where `-m gpu` asks for one."""
    try:
        return CudaDevice(cache=cache)
    except DeviceError as error:
        if "gpu" in config.getoption("markexpr"):
            pytest.fail(f"-m gpu asks for a GPU: {error}", pytrace=False)
        pytest.skip(str(error))
