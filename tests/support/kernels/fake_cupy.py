"""A stand-in for CuPy, so that CudaDevice runs where there is no GPU.

Its device memory is the host's, and everything asked of a stream is done at once, or kept where the
stream is being captured. It knows one kernel: the sum of two vectors. The names and signatures are
those of CuPy 14; whether CuPy itself behaves so, only a GPU shows.
"""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Work = Callable[[], None]

MEMORY = 1 << 30
SHARED = 227 << 10
ATTRIBUTES = {97: SHARED, 13: 1_980_000, 36: 3_201_000, 37: 6144}
"""Those of an H200: clocks in kHz, the width of its memory in bits."""
ILLEGAL_ADDRESS = 700


class CUDARuntimeError(RuntimeError):
    """An error of the runtime: `status` is a cudaError_t."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class CUDADriverError(RuntimeError):
    """An error of the driver: `status` is a CUresult."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR_{status}")
        self.status = status


class FakeCuda:
    """The module cupy.cuda, as much of it as CudaDevice touches."""

    def __init__(self, devices: int = 1) -> None:
        self.fault = 0  # what every call that waits answers, where not 0
        self._devices = devices
        self._capturing: dict[int, list[Work]] = {}  # by stream
        self.runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            cudaDevAttrMaxSharedMemoryPerBlockOptin=97,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            streamCaptureModeThreadLocal=1,
            setDevice=self._set_device,
            getDeviceProperties=lambda _: {
                "name": b"Fake GPU",
                "major": 9,
                "minor": 0,
                "multiProcessorCount": 132,
            },
            cudaDevAttrClockRate=13,
            cudaDevAttrMemoryClockRate=36,
            cudaDevAttrGlobalMemoryBusWidth=37,
            deviceGetAttribute=lambda attribute, _: ATTRIBUTES[attribute],
            driverGetVersion=lambda: 12080,
            memGetInfo=lambda: (MEMORY, MEMORY),
            memcpyAsync=lambda to, source, size, _kind, stream: self.ask(
                stream, lambda: ctypes.memmove(to, source, size)
            ),
            memsetAsync=lambda to, value, size, stream: self.ask(
                stream, lambda: ctypes.memset(to, value, size)
            ),
            deviceSynchronize=self.wait,
        )
        self.driver = SimpleNamespace(
            CUDADriverError=CUDADriverError,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
            CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES=3,
            CU_FUNC_ATTRIBUTE_NUM_REGS=4,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            moduleGetFunction=lambda module, name: module + len(name),
            funcGetAttribute=lambda attribute, _: {1: 64, 3: 0, 4: 32}[attribute],
            funcSetAttribute=lambda _function, _attribute, _value: None,
            launchKernel=self._launch,
        )
        self.function = SimpleNamespace(Module=lambda: SimpleNamespace(ptr=1 << 20, load=bytes))
        self.memory = SimpleNamespace(Memory=FakeMemory)
        self.Stream = lambda *, non_blocking: FakeStream(self)
        self.Event = lambda: SimpleNamespace(record=lambda stream: None)
        self.get_elapsed_time = lambda since, until: 0.5
        self.alloc_pinned_memory = bytearray

    def _set_device(self, _: int) -> None:
        if not self._devices:
            raise CUDARuntimeError(100)

    def ask(self, stream: int, work: Callable[[], Any]) -> None:
        """Do it, or keep it where the stream is captured."""
        if stream in self._capturing:
            self._capturing[stream].append(work)
        else:
            work()

    def capture(self, stream: int) -> None:
        """From now on keep what the stream is asked."""
        self._capturing[stream] = []

    def end_capture(self, stream: int) -> list[Work]:
        """What was kept."""
        return self._capturing.pop(stream)

    def wait(self) -> None:
        """As every call that waits: raises what went wrong before."""
        if self.fault:
            raise CUDARuntimeError(self.fault)

    def _launch(self, function: int, *arguments: int) -> None:
        *geometry, shared, stream, parameters, _extra = arguments
        block = geometry[3:]
        if self.fault:
            raise CUDADriverError(self.fault)
        if block[0] * block[1] * block[2] > 1024 or shared > SHARED:
            raise CUDADriverError(1)
        pointers = (ctypes.c_void_p * 6).from_address(parameters)
        # a, b, y, then the walk, whose first number is how many vectors of 4 it takes
        a, b, y = (ctypes.c_void_p.from_address(pointers[i] or 0).value or 0 for i in range(3))
        n = 4 * ctypes.c_uint.from_address(pointers[3] or 0).value

        def add() -> None:
            left, right, total = ((ctypes.c_float * n).from_address(each) for each in (a, b, y))
            total[:] = [p + q for p, q in zip(left, right, strict=True)]

        self.ask(stream, add)


class FakeMemory:
    """cupy.cuda.memory.Memory: device memory, freed with the object."""

    def __init__(self, size: int) -> None:
        if size > MEMORY:
            raise CUDARuntimeError(2)
        self._storage = ctypes.create_string_buffer(size + 256)
        self.ptr = -(-ctypes.addressof(self._storage) // 256) * 256


class FakeStream:
    """cupy.cuda.Stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.ptr = id(self)
        self.synchronize = cuda.wait

    def begin_capture(self, mode: int) -> None:
        """Keep what is asked from now on."""
        assert mode == self._cuda.runtime.streamCaptureModeThreadLocal
        self._cuda.capture(self.ptr)

    def end_capture(self) -> SimpleNamespace:
        """A graph of what was kept."""
        kept = self._cuda.end_capture(self.ptr)

        def launch(stream: FakeStream) -> None:
            for work in kept:
                self._cuda.ask(stream.ptr, work)

        return SimpleNamespace(upload=lambda stream: None, launch=launch)
