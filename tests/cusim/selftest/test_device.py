"""Checks of the simulated device in addition to those of every Device (tests/kernels)."""

from collections.abc import Callable

import numpy as np
import pytest

from cusim.device import POISON, CusimDevice
from kernels.device.device import ALIGNMENT, Device, DeviceError, FaultError, OutOfMemoryError
from tests.cusim.selftest.defects import TWICE
from tests.cusim.selftest.launching import instantiation, opened


def test_it_is_a_device(device: CusimDevice) -> None:
    checked_by_mypy: Device = device
    assert checked_by_mypy.architecture == "cusim"


def test_nothing_is_done_before_somebody_waits(device: CusimDevice) -> None:
    stream, buffer = device.stream(), device.allocate(4)
    x, y = np.array([1], np.float32), np.array([0], np.float32)
    device.upload(buffer.address, x, stream)
    device.download(y, buffer.address, stream)
    x[0] = 2  # too early: the copy is still to read it
    assert y == 0
    stream.synchronize()
    assert y == 2
    buffer.free()


def test_a_stream_that_does_not_wait_reads_what_was_not_yet_written(device: CusimDevice) -> None:
    first, second = device.stream(), device.stream()
    buffer, y = device.allocate(4), np.array([0], np.float32)
    device.upload(buffer.address, np.array([1], np.float32), first)
    device.download(y, buffer.address, second)
    second.synchronize()
    assert np.isnan(y)
    first.synchronize()
    device.download(y, buffer.address, second)
    second.synchronize()
    assert y == 1
    buffer.free()


def test_memory_holds_poison_until_written_and_again_once_freed(device: CusimDevice) -> None:
    stream = device.stream()
    for _ in range(2):
        buffer, y = device.allocate(1000), np.zeros(1000, np.uint8)
        device.download(y, buffer.address, stream)
        device.fill(buffer.address, 1000, 1, stream)
        stream.synchronize()
        assert (y == POISON).all()
        buffer.free()
    assert (device.pinned(10) == POISON).all()


def test_buffers_are_aligned_no_better_than_promised(device: CusimDevice) -> None:
    buffers = [device.allocate(nbytes) for nbytes in (1, 4096, 100_000)]
    assert {buffer.address % (2 * ALIGNMENT) for buffer in buffers} == {ALIGNMENT}
    for buffer in buffers:
        buffer.free()


def test_freed_memory_can_be_had_again_and_counts_as_free() -> None:
    device = opened(memory_bytes=1 << 20)
    half = device.allocate(1 << 19)
    with pytest.raises(OutOfMemoryError) as error:
        device.allocate((1 << 19) + 1)
    assert (error.value.needed, error.value.free) == ((1 << 19) + 1, 1 << 19)
    other = device.allocate(1 << 19)
    assert device.memory() == (0, 1 << 20)
    half.free()
    assert device.allocate(1 << 18).address == half.address
    other.free()
    device.close()


def test_a_copy_beyond_a_buffer_is_refused(device: CusimDevice) -> None:
    stream, buffer = device.stream(), device.allocate(8)
    for address in (buffer.address + 4, buffer.address - 4, 0):
        with pytest.raises(DeviceError, match="must lie in one buffer"):
            device.upload(address, np.zeros(2, np.float32), stream)
        with pytest.raises(DeviceError, match="must lie in one buffer"):
            device.fill(address, 8, 0, stream)
    buffer.free()


def test_a_kernel_that_uses_a_freed_buffer_is_at_fault() -> None:
    device = opened()
    stream, buffer = device.stream(), device.allocate(128)
    kernel = device.load(instantiation("bounds.cu", "twice"))
    arguments = (buffer.address, buffer.address, np.int32(32), np.int32(0))
    device.launch(kernel, (1, 1, 1), (32, 1, 1), 128, arguments, stream)
    buffer.free()
    with pytest.raises(FaultError, match=r"illegal address: .* with nothing allocated in twice"):
        device.synchronize()


def test_a_device_that_faulted_takes_no_more_work() -> None:
    device = opened()
    with pytest.raises(FaultError, match="__trap"):
        TWICE.run(device, "TRAP")
    with pytest.raises(FaultError, match="__trap"):
        device.allocate(4)
    assert TWICE.run(opened(), "NONE")  # another does


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda device: device.allocate(4),
        lambda device: device.pinned(4),
        lambda device: device.synchronize(),
        lambda device: device.stream().synchronize(),
        lambda device: device.event().record(device.stream()),
        lambda device: device.load(instantiation("bounds.cu", "twice")),
        lambda device: device.capture(device.stream()).__enter__(),
    ],
    ids=["allocate", "pinned", "synchronize", "stream", "record", "load", "capture"],
)
def test_a_capture_refuses_what_cuda_refuses(
    device: CusimDevice, forbidden: Callable[[CusimDevice], object]
) -> None:
    with (
        pytest.raises(DeviceError, match="while a graph is captured"),
        device.capture(device.stream()),
    ):
        forbidden(device)
    forbidden(device)  # which ends with it


def test_a_graph_is_not_replayed_before_its_capture_has_ended(device: CusimDevice) -> None:
    stream = device.stream()
    with device.capture(stream) as graph, pytest.raises(DeviceError, match="has ended"):
        graph.replay(device.stream())
    graph.replay(stream)
