"""Opens the GPU for tests marked `gpu`."""

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError


def open_gpu(config: pytest.Config) -> CudaDevice:
    """Return the GPU. Without a GPU, skip the test, or let it fail if `-m gpu` requested a GPU.

    The device uses the server's cache of kernels. So kernels that one program compiled, or that
    `carry` copied, are available to all programs.
    """
    try:
        return CudaDevice()
    except DeviceError as error:
        why = str(error)
    if "gpu" in config.getoption("markexpr"):
        pytest.fail(f"-m gpu asks for a GPU: {why}", pytrace=False)
    pytest.skip(why)
