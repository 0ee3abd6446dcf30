"""A chain of dependent launches; each stores its result 100 µs after it lets the next one begin."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.device.device import Device, FaultError
from kernels.tuning.timing import launcher
from tests.support.cases.micro import LATE_THREADS, late_launch
from tests.support.kernels.mutations import replaced

CHAIN, REPLAYS = 16, 20


@pytest.fixture(params=["cusim", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "gpu":
        yield request.getfixturevalue("cuda_device")
        return
    cusim = CusimDevice()
    yield cusim
    cusim.close()


def added_up(device: Device) -> list[float]:
    """Return the sums of the launches after REPLAYS replays of CHAIN, each of which adds one."""
    launches = [late_launch(1), late_launch(1).renamed({"x": "y", "y": "x"})] * (CHAIN // 2)
    buffers = {name: device.allocate(4 * LATE_THREADS) for name in ("x", "y")}
    at = {name: buffer.address for name, buffer in buffers.items()}
    stream, run = device.stream(), launcher(device, launches, [at], dependent=True)
    run(stream, 0)  # once before the capture, which may not load kernels
    with device.capture(stream) as graph:
        run(stream, 0)
    sums = np.zeros(LATE_THREADS, np.float32)
    device.upload(at["x"], sums, stream)
    for _ in range(REPLAYS):
        graph.replay(stream)
    device.download(sums, at["x"], stream)
    stream.synchronize()
    for buffer in buffers.values():
        buffer.free()
    return sorted(set(sums.tolist()))


def test_each_launch_sees_the_stores_of_the_one_before(device: Device) -> None:
    assert added_up(device) == [CHAIN * REPLAYS]


def test_a_kernel_that_does_not_wait_is_noticed(tmp_path: Path) -> None:
    head = "late(const float* x, float* y) {\n"
    root = replaced(
        tmp_path, "micro.cu", f"{head}  follow_previous();", f"{head}  let_next_begin();"
    )
    device = CusimDevice(source_root=root)
    with pytest.raises(FaultError, match="no thread waited for the preceding launch"):
        added_up(device)
    device.close()
