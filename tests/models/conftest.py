"""The devices on which whole networks run."""

from collections.abc import Iterator

import pytest

from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.device import Device
from tests.support.kernels.gpu import open_gpu


@pytest.fixture(scope="module", params=["cusim", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "cusim":
        cusim = CusimDevice(FAST)
        yield cusim
        cusim.close()
        return
    yield open_gpu(request.config)
