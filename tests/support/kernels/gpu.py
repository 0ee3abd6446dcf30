"""Opens the GPU for tests marked `gpu`."""

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError


def open_gpu(config: pytest.Config) -> CudaDevice:
    """Return the GPU. If there is no GPU, skip the test. If `-m gpu` requested a GPU, the test
    fails instead.

    The device uses the same cache of kernels as the server. So kernels that one program compiled,
    or that `carry` copied, are available to all programs.
    """
    try:
        return CudaDevice()
    except DeviceError as error:
        why = str(error)
    if "gpu" in config.getoption("markexpr"):
        pytest.fail(f"-m gpu asks for a GPU: {why}", pytrace=False)
    pytest.skip(why)
