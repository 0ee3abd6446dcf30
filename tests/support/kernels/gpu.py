"""Opens the GPU for tests marked `gpu`."""

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError


def open_gpu(config: pytest.Config) -> CudaDevice:
    """Return the GPU. Without a GPU, the test is skipped, or fails if `-m gpu` requested one.

    It uses the server's cache of kernels, so kernels that one program compiles, or that `carry`
    copied, are available to all.
    """
    try:
        return CudaDevice()
    except DeviceError as error:
        why = str(error)
    if "gpu" in config.getoption("markexpr"):
        pytest.fail(f"-m gpu asks for a GPU: {why}", pytrace=False)
    pytest.skip(why)
