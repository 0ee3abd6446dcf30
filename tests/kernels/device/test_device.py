"""The behaviour that the engine requires from any Device: the simulator, and a GPU if one is
available.

Without a GPU, CudaDevice at least runs with a stand-in for CuPy.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.device import CusimDevice
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import (
    ALIGNMENT,
    CompileError,
    Device,
    Instantiation,
    LaunchError,
    OutOfMemoryError,
    Stream,
)
from kernels.device.launch import instantiate
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import binary_launch
from kernels.problems.binary_operation import BinaryOp
from tests.support.kernels.fake_cupy import FakeCupy
from tests.support.kernels.resources import CACHE

N = 2000
_VECTOR = StridedTensor.contiguous((N,))
_SUM = binary_launch(BinaryOp.ADD, _VECTOR, _VECTOR, _VECTOR)
NBYTES = 4 * N


@pytest.fixture(
    scope="module", params=["cusim", "fake cupy", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "cuda":
        yield request.getfixturevalue("cuda_device")
    elif request.param == "fake cupy":
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "cupy", FakeCupy())
            yield CudaDevice(cache=CACHE)
    else:
        simulated = CusimDevice()
        yield simulated
        simulated.close()


def doubling(device: Device) -> Callable[[int, Stream], None]:
    """Loads the kernel; a call adds the vector at an address to itself."""
    kernel = device.load(_SUM.instantiation)

    def double(address: int, stream: Stream) -> None:
        arguments = _SUM.bind(dict.fromkeys(_SUM.operands, address))
        device.launch(kernel, _SUM.grid, _SUM.block, _SUM.shared_bytes, arguments, stream)

    return double


def floats(device: Device, value: float = 0.0) -> NDArray[np.float32]:
    """Return N pinned floats."""
    array = device.pinned(NBYTES).view(np.float32)
    array[:] = value
    return array


def test_it_says_what_it_is(device: Device) -> None:
    assert device.name
    assert device.architecture == "cusim" or device.architecture.rstrip("a").isdigit()
    assert device.multiprocessors > 0
    assert device.max_shared_bytes >= 64 << 10
    memory = device.memory()
    assert 0 < memory.free <= memory.total
    assert device.driver
    assert device.compiler
    assert device.peak_flops > 0
    assert device.peak_bandwidth > 0


def test_what_is_uploaded_computed_and_downloaded_is_done_in_order(device: Device) -> None:
    stream, buffer = device.stream(), device.allocate(NBYTES)
    x, y = floats(device, 3), floats(device)
    double = doubling(device)
    device.upload(buffer.address, x, stream)
    for _ in range(5):
        double(buffer.address, stream)
    device.download(y, buffer.address, stream)
    stream.synchronize()
    assert np.all(y == 3 * 2**5)
    buffer.free()


def test_a_kernel_is_loaded_once_and_tells_its_shared_memory(device: Device) -> None:
    types = {"x": "float", "y": "float"}
    softmax = instantiate("softmax.cu", "softmax", **types, log=False, rank=1, threads=256)
    kernel = device.load(softmax)
    needed = 2 * (256 // 32) * 4  # two reductions over the warps
    assert kernel.static_shared_bytes is not None
    assert needed <= kernel.static_shared_bytes < needed + 64  # aligned as the device likes it
    assert device.load(softmax) == kernel


def test_buffers_are_aligned_and_part_of_one_can_be_filled(device: Device) -> None:
    stream, buffer, y = device.stream(), device.allocate(NBYTES), floats(device, 1)
    assert buffer.address % ALIGNMENT == 0
    assert buffer.nbytes == NBYTES
    device.fill(buffer.address, NBYTES, 0, stream)
    device.fill(buffer.address + 4, 8, 0xFF, stream)
    device.download(y, buffer.address, stream)
    stream.synchronize()
    assert list(np.flatnonzero(np.isnan(y))) == [1, 2]
    assert np.count_nonzero(y == 0) == N - 2
    buffer.free()


def test_a_graph_replays_copies_and_launches_on_what_the_arrays_hold_then(device: Device) -> None:
    stream, buffer, x, y = device.stream(), device.allocate(NBYTES), floats(device), floats(device)
    double = doubling(device)
    with device.capture(stream) as graph:
        device.upload(buffer.address, x, stream)
        double(buffer.address, stream)
        double(buffer.address, stream)
        device.download(y, buffer.address, stream)
    stream.synchronize()
    assert np.all(y == 0), "what is captured is not done"
    for value in (1.0, -3.0):
        x[:] = value
        graph.replay(stream)
        stream.synchronize()
        assert np.all(y == 4 * value)
    buffer.free()


def test_a_graph_replays_on_another_stream_than_it_was_captured_on(device: Device) -> None:
    first, second = device.stream(), device.stream()
    buffer, x, y = device.allocate(NBYTES), floats(device, 1), floats(device)
    double = doubling(device)
    with device.capture(first) as graph:
        device.upload(buffer.address, x, first)
        double(buffer.address, first)
    graph.replay(second)
    device.download(y, buffer.address, second)
    second.synchronize()
    assert np.all(y == 2)
    buffer.free()


def test_a_capture_that_fails_leaves_the_stream_usable(device: Device) -> None:
    stream, buffer, y = device.stream(), device.allocate(NBYTES), floats(device, 1)
    with contextlib.suppress(ZeroDivisionError), device.capture(stream):
        device.fill(buffer.address, NBYTES, 0xFF, stream)
        raise ZeroDivisionError
    device.fill(buffer.address, NBYTES, 0, stream)
    device.download(y, buffer.address, stream)
    stream.synchronize()
    assert np.all(y == 0)
    buffer.free()


def test_events_tell_the_time_between_them(device: Device) -> None:
    stream, buffer = device.stream(), device.allocate(NBYTES)
    begin, end = device.event(), device.event()
    begin.record(stream)
    device.fill(buffer.address, NBYTES, 0, stream)
    end.record(stream)
    stream.synchronize()
    assert 0 <= end.elapsed_ms(begin) < 1e4
    buffer.free()


def test_too_large_an_allocation_says_what_was_needed_and_what_was_free(device: Device) -> None:
    needed = device.memory().total * 2
    with pytest.raises(OutOfMemoryError, match="bytes are needed") as caught:
        device.allocate(needed)
    assert caught.value.needed == needed
    assert 0 < caught.value.free < needed
    device.allocate(NBYTES).free()  # nothing is broken


@pytest.mark.parametrize(
    ("block", "shared_bytes"),
    [((2048, 1, 1), 0), ((256, 1, 1), 1 << 20), ((256, 0, 1), 0)],
    ids=["block", "shared", "none"],
)
def test_a_launch_that_does_not_fit_is_refused_with_the_kernels_name(
    device: Device, block: tuple[int, int, int], shared_bytes: int
) -> None:
    stream, buffer = device.stream(), device.allocate(NBYTES)
    arguments = _SUM.bind(dict.fromkeys(_SUM.operands, buffer.address))
    kernel = device.load(_SUM.instantiation)
    with pytest.raises(LaunchError, match="binary<float, BinaryOp::ADD"):
        device.launch(kernel, (1, 1, 1), block, shared_bytes, arguments, stream)
    device.fill(buffer.address, NBYTES, 0, stream)
    doubling(device)(buffer.address, stream)
    device.synchronize()  # nothing is broken
    buffer.free()


def test_what_does_not_compile_is_refused_with_the_compilers_words(device: Device) -> None:
    template = (("activation", "Activation::NO_SUCH"), ("rank", 1), ("v", 1))
    with pytest.raises(CompileError, match="NO_SUCH"):
        device.load(Instantiation("elementwise.cu", "map", template))


def test_only_contiguous_arrays_are_copied(device: Device) -> None:
    stream, buffer = device.stream(), device.allocate(NBYTES)
    with pytest.raises(ValueError, match="contiguous"):
        device.upload(buffer.address, floats(device)[::2], stream)
    buffer.free()
