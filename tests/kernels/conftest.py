"""Devices for the tests: the CPU simulator everywhere, and a GPU where one answers."""

from collections.abc import Iterator

import pytest

from cusim.device import CusimDevice, Order
from kernels.device.compile import DEFAULT_CACHE, compile_all
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.support.kernels.gpu import open_gpu


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the kernels of the cases that a GPU will run, on all cores: before the time of a test
    counts, after which it would be taken as hung."""
    on_gpu = (item for item in session.items if "cuda_device" in getattr(item, "fixturenames", ()))
    cases = (item.callspec.params.get("case") for item in on_gpu if hasattr(item, "callspec"))
    kernels = {launch.instantiation for case in cases if case for launch in case.launches}
    if not kernels or session.config.option.collectonly:
        return
    try:
        device = CudaDevice()
    except DeviceError:  # which each test says, or why it is skipped
        return
    compile_all(kernels, [device.architecture], DEFAULT_CACHE)


@pytest.fixture(scope="module", params=Order, ids=lambda order: order.name.lower())
def device(request: pytest.FixtureRequest) -> Iterator[CusimDevice]:
    """The simulator for cases that are drawn, in each order in which threads may take turns."""
    device = CusimDevice(order=request.param)
    yield device
    device.close()


@pytest.fixture(scope="session")
def cuda_device(pytestconfig: pytest.Config) -> Iterator[CudaDevice]:
    """The GPU; see `open_gpu` for where none is."""
    device = open_gpu(pytestconfig)
    yield device
    device.synchronize()
