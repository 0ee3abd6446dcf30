"""A simulated device for the tests of the simulator itself."""

from collections.abc import Iterator

import pytest

from cusim.device import CusimDevice
from tests.cusim.selftest.launching import opened


@pytest.fixture(scope="session")
def device() -> Iterator[CusimDevice]:
    """Yield a simulated device in which no test may cause a fault."""
    device = opened()
    yield device
    device.close()
