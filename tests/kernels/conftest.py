"""Devices for the tests: the CPU simulator on every machine, and a GPU if one is available."""

from collections.abc import Iterator

import pytest

from cusim.device import CusimDevice, Order
from kernels.device.compile import DEFAULT_CACHE, compile_all
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError
from tests.support.kernels.gpu import open_gpu


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the kernels of all cases that a GPU will run, on all cores, before the tests' time
    limits begin."""
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
    """Yield the simulator for drawn cases, once with each order of threads."""
    device = CusimDevice(order=request.param)
    yield device
    device.close()


@pytest.fixture(scope="session")
def cuda_device(pytestconfig: pytest.Config) -> Iterator[CudaDevice]:
    """Return the GPU; `open_gpu` skips the test or fails if there is none."""
    device = open_gpu(pytestconfig)
    yield device
    device.synchronize()
