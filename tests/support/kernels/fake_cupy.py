"""Replaces CuPy, so that CudaDevice runs without a GPU.

Device memory is ordinary host memory. A stream's work is done at once, or recorded if the stream is
being captured. The only kernel adds two vectors. tests/kernels/device/test_cuda_device_cupy.py
checks that CuPy has the same names and signatures as the fake. Only a GPU can show whether CuPy
itself behaves like the fake.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Work = Callable[[], None]

MEMORY = 1 << 30
SHARED = 227 << 10
ATTRIBUTES = {97: SHARED, 13: 1_980_000, 36: 3_201_000, 37: 6144}
"""The attributes of an H200: clocks in kHz, the width of its memory in bits."""
ILLEGAL_ADDRESS = 700


class CUDARuntimeError(RuntimeError):
    """Reports an error of the runtime. `status` is a cudaError_t."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class CUDADriverError(RuntimeError):
    """Reports an error of the driver. `status` is a CUresult."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR_{status}")
        self.status = status


class FakeCupy:
    """Replaces the parts of the module cupy that CudaDevice uses."""

    def __init__(self, devices: int = 1) -> None:
        self.fault = 0  # what every call that waits or launches answers, where not 0
        self.capturing: dict[int, list[Work]] = {}  # by stream
        self.loaded: list[bytes] = []  # the machine code of every module
        self.streams: list[str] = []  # what happened to one: created, capture, captured, destroyed
        self.cuda = SimpleNamespace(
            runtime=FakeRuntime(self, devices),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(Memory=FakeMemory),
            Stream=lambda non_blocking: FakeStream(self),
            Event=FakeEvent,
            get_elapsed_time=lambda start_event, end_event: 0.5,
            alloc_pinned_memory=_alloc_pinned_memory,
        )

    def RawModule(self, *, path: str) -> "FakeRawModule":  # noqa: N802  CuPy's name
        """Load a cubin."""
        return FakeRawModule(self, Path(path).read_bytes())

    def ask(self, stream: int, work: Callable[[], Any]) -> None:
        """Do the work, or record it if the stream is being captured."""
        if stream in self.capturing:
            self.capturing[stream].append(work)
        else:
            work()


class FakeRuntime:
    """Replaces cupy.cuda.runtime."""

    CUDARuntimeError = CUDARuntimeError
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97  # noqa: N815  CUDA's names
    cudaDevAttrClockRate = 13  # noqa: N815
    cudaDevAttrMemoryClockRate = 36  # noqa: N815
    cudaDevAttrGlobalMemoryBusWidth = 37  # noqa: N815
    memcpyHostToDevice = 1  # noqa: N815
    memcpyDeviceToHost = 2  # noqa: N815
    streamCaptureModeThreadLocal = 1  # noqa: N815

    def __init__(self, cupy: FakeCupy, devices: int) -> None:
        self._cupy, self._devices = cupy, devices

    def setDevice(self, device: int) -> None:  # noqa: N802
        """Raise an error if there is no such device."""
        if device >= self._devices:
            raise CUDARuntimeError(100)

    def getDeviceProperties(self, device: int) -> dict[str, object]:  # noqa: N802
        """Return a Hopper's properties."""
        return {"name": b"Fake GPU", "major": 9, "minor": 0, "multiProcessorCount": 132}

    def deviceGetAttribute(self, attrib: int, device: int) -> int:  # noqa: N802
        """Return one of ATTRIBUTES."""
        return ATTRIBUTES[attrib]

    def driverGetVersion(self) -> int:  # noqa: N802
        """Return CUDA 12.8's version."""
        return 12080

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        """Report that all memory is free."""
        return MEMORY, MEMORY

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        """Copy, or record the copy for the capture."""
        self._cupy.ask(stream, lambda: ctypes.memmove(dst, src, size))

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Fill, or record the fill for the capture."""
        self._cupy.ask(stream, lambda: ctypes.memset(ptr, value, size))

    def deviceSynchronize(self) -> None:  # noqa: N802
        """Raise the error of an earlier call, like every call that waits."""
        if self._cupy.fault:
            raise CUDARuntimeError(self._cupy.fault)


class FakeRawModule:
    """Replaces cupy.RawModule."""

    def __init__(self, cupy: FakeCupy, code: bytes) -> None:
        self._cupy = cupy
        cupy.loaded.append(code)

    def get_function(self, name: str) -> "FakeRawKernel":
        """Return the only kernel, for any name."""
        return FakeRawKernel(self._cupy)


class FakeRawKernel:
    """Replaces cupy.RawKernel, and computes y = a + b. As in CuPy, the arguments of a launch are
    converted to bytes."""

    kernel = SimpleNamespace(ptr=0xF00)
    num_regs = 32
    shared_size_bytes = 64
    local_size_bytes = 0

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.preferred_shared_memory_carveout = -1  # the driver's choice
        self._dynamic_bytes = (48 << 10) - self.shared_size_bytes

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Return the dynamic shared memory that a launch may use."""
        return self._dynamic_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, bytes: int) -> None:  # noqa: A002  CuPy's name
        if bytes > SHARED - self.shared_size_bytes:
            raise CUDADriverError(1)
        self._dynamic_bytes = bytes

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int = 0,
        stream: "FakeStream",
    ) -> None:
        """Launch the kernel. As in CuPy, a size of 0 counts as 1."""
        if self._cupy.fault:
            raise CUDADriverError(self._cupy.fault)
        if np.prod(block) > 1024 or shared_mem > self._dynamic_bytes:
            raise CUDADriverError(1)
        if len(args) < 4:
            return
        # a, b, y, and the walk, whose first number counts vectors of 4
        a, b, y, walk, *_ = map(_parameter, args)
        (vectors,) = np.frombuffer(walk, np.uint32, 1)
        addresses = [int.from_bytes(each, "little") for each in (a, b, y)]

        def add() -> None:
            at = ctypes.c_float * int(4 * vectors)
            left, right, total = (at.from_address(each) for each in addresses)
            total[:] = [p + q for p, q in zip(left, right, strict=True)]

        self._cupy.ask(stream.ptr, add)


def _alloc_pinned_memory(size: int) -> bytearray:
    """Return ordinary host memory."""
    return bytearray(size)


def _parameter(argument: Any) -> bytes:
    """Return the bytes of an argument. An array of one element is passed by value. A Python integer
    has 8 bytes."""
    if isinstance(argument, np.ndarray):
        if argument.size != 1:
            raise TypeError(f"an array of shape {argument.shape} as a parameter")
        return argument.tobytes()
    if isinstance(argument, int | np.number):
        return np.asarray(argument).tobytes()
    raise TypeError(f"Unsupported type {type(argument)}")


class FakeMemory:
    """Replaces cupy.cuda.memory.Memory. The memory is freed with the object."""

    def __init__(self, size: int) -> None:
        if size > MEMORY:
            raise CUDARuntimeError(2)
        self._storage = ctypes.create_string_buffer(size + 256)
        self.ptr = -(-ctypes.addressof(self._storage) // 256) * 256


class FakeEvent:
    """Replaces cupy.cuda.Event."""

    def __init__(self, *, block: bool = False, disable_timing: bool = False) -> None:
        self._capture: list[Work] | None = None
        self._stream: FakeStream | None = None

    def record(self, stream: "FakeStream") -> None:
        """Let the event occur at once. If the stream is being captured, other streams that wait for
        this event join the capture."""
        self._capture, self._stream = stream._kept(), stream

    def synchronize(self) -> None:
        """Raise the error of an earlier call."""
        assert self._stream is not None
        self._stream.synchronize()


class FakeGraph:
    """Replaces cupy.cuda.graph.Graph."""

    def __init__(self, cupy: FakeCupy, kept: list[Work]) -> None:
        self._cupy, self._kept = cupy, kept

    def upload(self, stream: "FakeStream") -> None:
        """Do nothing, because the graph needs no upload."""

    def launch(self, stream: "FakeStream") -> None:
        """Do all recorded work."""
        for work in self._kept:
            self._cupy.ask(stream.ptr, work)


class FakeStream:
    """Replaces cupy.cuda.Stream."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.ptr = id(self)
        cupy.streams.append("created")

    def __del__(self) -> None:
        self._cupy.streams.append("destroyed")

    def synchronize(self) -> None:
        """Raise the error of an earlier call."""
        self._cupy.cuda.runtime.deviceSynchronize()

    def _kept(self) -> list[Work] | None:
        """Return the work that the stream's capture has recorded, or None if the stream is not
        being captured."""
        return self._cupy.capturing.get(self.ptr)

    def wait_event(self, event: "FakeEvent") -> None:
        """Join the capture of the event's stream. If that stream is not being captured, do nothing,
        because all work runs in order."""
        if event._capture is not None:
            self._cupy.capturing[self.ptr] = event._capture

    def begin_capture(self, mode: int) -> None:
        """Record all work from now on."""
        assert mode == FakeRuntime.streamCaptureModeThreadLocal
        self._cupy.capturing[self.ptr] = []
        self._cupy.streams.append("capture")

    def end_capture(self) -> FakeGraph:
        """Return a graph of the recorded work."""
        kept = self._cupy.capturing.pop(self.ptr)
        self._cupy.streams.append("captured")
        for stream in [each for each, work in self._cupy.capturing.items() if work is kept]:
            del self._cupy.capturing[stream]
        return FakeGraph(self._cupy, kept)
