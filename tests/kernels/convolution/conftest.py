"""The simulator for layers that are drawn, in each order in which threads may take turns."""

from collections.abc import Iterator

import pytest

from cusim.device import CusimDevice, Order


@pytest.fixture(scope="module", params=Order, ids=lambda order: order.name.lower())
def device(request: pytest.FixtureRequest) -> Iterator[CusimDevice]:
    """A simulated device with one of the orders."""
    device = CusimDevice(order=request.param)
    yield device
    device.close()
