"""The simulated device for the tests of benchmarks."""

from collections.abc import Iterator

import pytest

from cusim.device import CusimDevice


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()
