"""The devices that whole networks are run on."""

from collections.abc import Iterator

import pytest

from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, DeviceError
from tests.cusim.device import CusimDevice


@pytest.fixture(scope="module", params=["cusim", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "cusim":
        cusim = CusimDevice()
        yield cusim
        cusim.close()
        return
    try:
        yield CudaDevice()
    except DeviceError as error:
        pytest.skip(str(error))
