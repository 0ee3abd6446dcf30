"""Implements Device for a GPU, through CuPy. No other module uses CuPy to open a GPU.

    kernels/device/compile.py ─ cubin ─ cupy.RawModule(path=...) ─ cupy.RawKernel ─ launch

CuPy loads and launches kernels, and owns streams, events, graphs and memory. Convoy compiles the
cubins itself, because CuPy uses other flags and cuts the last byte off a cubin.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.compile import (
    DEFAULT_CACHE,
    Cubin,
    architecture,
    compile_each,
    compile_kernel,
    compiler,
)
from kernels.device.device import (
    NO_CLUSTERS,
    Argument,
    DeviceError,
    Dim3,
    Event,
    FaultError,
    Graph,
    Instantiation,
    Kernel,
    LaunchError,
    Memory,
    OutOfMemoryError,
    PlainArgument,
    Stream,
    encode,
)
from kernels.device.driver import (
    DriverError,
    encoded,
    has_driver,
    launch_kernel,
    programmatic_edges,
)
from kernels.device.gpus import architecture_of
from kernels.device.tensor_map import TensorMap
from kernels.installation import how_to_install

# cudaError_t and CUresult, which agree on these. CuPy has no names for them.
_INVALID_VALUE = 1
_OUT_OF_MEMORY = 2
_TOO_MANY_RESOURCES = 701
_NOT_SUPPORTED = 801
_INVALID_CLUSTER_SIZE = 912
_REFUSALS = frozenset((_INVALID_VALUE, _TOO_MANY_RESOURCES, _NOT_SUPPORTED, _INVALID_CLUSTER_SIZE))

_OVERLAP_SM, _OVERLAP_DRIVER = 90, 12030
"""The first architecture and the first driver with which launches overlap, in captured graphs too
(kernels/src/dependent.cuh)."""

_SHARED_MEMORY_PERCENT = 100
"""The share of the first-level cache that all kernels prefer as shared memory. A multiprocessor
must be empty to change this share, so launches with different shares could not overlap."""


class CudaDevice:
    """Implements Device (kernels.device.device) for one of the GPUs that CUDA_VISIBLE_DEVICES
    lists.

    `number` is CUDA's device number, and `cache` is the folder of compiled kernels. Raises
    DeviceError if CuPy or the driver is not installed, or if the GPU is not available.
    """

    def __init__(self, number: int = 0, cache: Path = DEFAULT_CACHE) -> None:
        # Importing CuPy takes 0.2 s and 20 MB, only to say the same.
        if "cupy" not in sys.modules and not has_driver():
            raise DeviceError(f"CUDA device {number} cannot be used: no NVIDIA driver is installed")
        self._cupy = _cupy()
        self._cuda = self._cupy.cuda
        self.number = number
        runtime = self._cuda.runtime
        try:
            self._use()
            properties = runtime.getDeviceProperties(number)
        except runtime.CUDARuntimeError as error:
            raise DeviceError(f"CUDA device {number} cannot be used: {error}") from error
        self.name: str = properties["name"].decode()
        self.architecture = architecture((properties["major"], properties["minor"]))
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.max_shared_bytes: int = self._attribute("MaxSharedMemoryPerBlockOptin")
        version: int = runtime.driverGetVersion()
        self.overlaps = (
            int(self.architecture.rstrip("a")) >= _OVERLAP_SM and version >= _OVERLAP_DRIVER
        )
        self.driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
        lanes = self.multiprocessors * architecture_of(self.architecture).lanes
        self.peak_flops = 2e3 * lanes * self._attribute("ClockRate")
        # Memory moves data at both edges of its clock.
        self.peak_bandwidth = (
            2e3 * self._attribute("MemoryClockRate") * self._attribute("GlobalMemoryBusWidth") / 8
        )
        self._cache = cache
        self._lock = threading.Lock()
        self._kernels: dict[Instantiation, Kernel] = {}
        self._captured: list[CudaGraph] = []  # graphs being captured now

    def _attribute(self, name: str) -> int:
        """Return an attribute of the device. Clock rates are in kHz, and widths are in bits."""
        runtime = self._cuda.runtime
        value: int = runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), self.number)
        return value

    @property
    def compiler(self) -> str:
        return compiler()

    def compile(
        self, instantiations: Iterable[Instantiation], threads: int = 0
    ) -> Iterator[Instantiation]:
        return compile_each(self._cubin, instantiations, threads)

    def _cubin(self, instantiation: Instantiation) -> Cubin:
        return compile_kernel(instantiation, self.architecture, self._cache)

    def load(self, instantiation: Instantiation) -> Kernel:
        if instantiation not in self._kernels:
            cubin = self._cubin(instantiation)
            with self._lock:
                if instantiation not in self._kernels:
                    self._kernels[instantiation] = self._load(instantiation, cubin)
        return self._kernels[instantiation]

    def _load(self, instantiation: Instantiation, cubin: Cubin) -> Kernel:
        # CuPy takes machine code from files alone, and remembers a module by its file's name.
        with self._faults(), NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin.code)
            file.flush()
            raw = self._cupy.RawModule(path=file.name).get_function(cubin.name)
            raw.preferred_shared_memory_carveout = _SHARED_MEMORY_PERCENT
            return Kernel(
                instantiation,
                raw,
                registers=raw.num_regs,
                static_shared_bytes=raw.shared_size_bytes,
                local_bytes=raw.local_size_bytes,
            )

    def allocate(self, nbytes: int, *, constant: bool = False) -> "CudaBuffer":  # noqa: ARG002
        self._use()
        try:
            return CudaBuffer(self._cuda.memory.Memory(nbytes), nbytes)
        except self._cuda.runtime.CUDARuntimeError as error:
            raise self._allocation_error(error, nbytes) from error

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._use()
        try:
            memory = self._cuda.alloc_pinned_memory(nbytes)
        except self._cuda.runtime.CUDARuntimeError as error:
            raise self._allocation_error(error, nbytes) from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def address(self, pinned: NDArray[Any]) -> int:
        """Return the array's address on the host. With CUDA's unified addressing, this address is
        valid on the device too."""
        return _address(pinned)

    def _allocation_error(self, error: Exception, nbytes: int) -> DeviceError:
        if getattr(error, "status", None) == _OUT_OF_MEMORY:
            return OutOfMemoryError(nbytes, self.memory().free)
        return FaultError(str(error))

    def memory(self) -> Memory:
        with self._faults():
            return Memory(*self._cuda.runtime.memGetInfo())

    def stream(self) -> "CudaStream":
        with self._faults():
            # Non-blocking: it does not wait for work on the default stream.
            ended = self._cuda.Event(block=True, disable_timing=True)
            return CudaStream(self._cuda.Stream(non_blocking=True), ended, self._faults)

    def event(self) -> "CudaEvent":
        with self._faults():
            return CudaEvent(self._cuda.Event(), self._cuda.get_elapsed_time, self._faults)

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        self._copy(destination, _address(source), source, "memcpyHostToDevice", stream)

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        self._copy(_address(destination), source, destination, "memcpyDeviceToHost", stream)

    def _copy(self, to: int, source: int, array: NDArray[Any], kind: str, stream: Stream) -> None:
        runtime, own = self._cuda.runtime, _own(stream)
        with self._faults():
            runtime.memcpyAsync(to, source, array.nbytes, getattr(runtime, kind), own.cupy.ptr)
        for graph in self._captured:
            graph.arrays.append(array)

    def fill(self, destination: int, nbytes: int, value: int, stream: Stream) -> None:
        with self._faults():
            self._cuda.runtime.memsetAsync(destination, value, nbytes, _own(stream).cupy.ptr)

    def launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        arguments: Sequence[Argument],
        stream: Stream,
        *,
        dependent: bool = False,
        cluster: Dim3 = NO_CLUSTERS,
    ) -> None:
        geometry = f"grid {grid}, block {block}, {shared_bytes} bytes of shared memory"
        if cluster != NO_CLUSTERS:
            geometry += f", clusters {cluster}"
        if min(*grid, *block, *cluster) < 1:  # RawKernel would launch 1 instead of 0
            raise LaunchError(kernel, f"the launch has no threads; start at least one ({geometry})")
        raw = kernel.function
        self._use()
        try:
            plain = [
                encoded(argument) if isinstance(argument, TensorMap) else argument
                for argument in arguments
            ]
            # More than 48 KiB must be asked for. It is never lowered: a captured launch needs it.
            if shared_bytes > raw.max_dynamic_shared_size_bytes:  # noqa: PLR1730  only if it must
                raw.max_dynamic_shared_size_bytes = shared_bytes
            early = dependent and self.overlaps
            if early or cluster != NO_CLUSTERS:
                launch_kernel(
                    raw.kernel.ptr,
                    grid,
                    block,
                    shared_bytes,
                    [encode(argument) for argument in plain],
                    _own(stream).cupy.ptr,
                    dependent=early,
                    cluster=cluster,
                )
            else:
                raw(
                    grid,
                    block,
                    tuple(map(_raw_argument, plain)),
                    shared_mem=shared_bytes,
                    stream=_own(stream).cupy,
                )
        except (self._cuda.driver.CUDADriverError, DriverError) as error:
            if error.status in _REFUSALS:
                raise LaunchError(kernel, f"{error} ({geometry})") from error
            raise FaultError(f"{error}, reported at the launch of {kernel} ({geometry})") from error

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        return self._capture(_own(stream))

    @contextmanager
    def _capture(self, stream: "CudaStream") -> Iterator[Graph]:
        graph = CudaGraph(self._faults)
        with self._faults():
            # Thread-local: calls of other threads meanwhile are not errors.
            stream.cupy.begin_capture(self._cuda.runtime.streamCaptureModeThreadLocal)
        self._captured.append(graph)
        try:
            yield graph
        except BaseException:
            # The stream must leave the capture, unless the error ended it already.
            try:
                stream.cupy.end_capture()
            except self._cuda.runtime.CUDARuntimeError as error:
                raise FaultError(f"the CUDA graph cannot be captured: {error}") from error
            raise
        finally:
            self._captured.remove(graph)
        with self._faults():
            graph.cupy = stream.cupy.end_capture()
            graph.cupy.upload(stream.cupy)  # or the first replay would pay for it

    def early_launches(self, graph: Graph) -> int:
        if not isinstance(graph, CudaGraph):
            raise TypeError(f"{graph!r} is not a graph of a CUDA device")
        self._use()
        try:
            return programmatic_edges(graph.cupy.graph)
        except DriverError as error:
            raise DeviceError(f"the edges of a CUDA graph cannot be counted: {error}") from error

    def synchronize(self) -> None:
        with self._faults():
            self._cuda.runtime.deviceSynchronize()

    def _use(self) -> None:
        """Make the device current in this thread, as CUDA's calls require."""
        if getattr(_thread, "device", None) != self.number:
            self._cuda.runtime.setDevice(self.number)
            _thread.device = self.number

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Within a `with` block, raise FaultError if a CUDA call reports an asynchronous error. Any
        earlier work may have caused this error."""
        try:
            self._use()
            yield
        except (
            self._cuda.runtime.CUDARuntimeError,
            self._cuda.driver.CUDADriverError,
        ) as error:
            raise FaultError(str(error)) from error


_thread = threading.local()  # whose `device` is the thread's

Faults = Callable[[], AbstractContextManager[None]]


class CudaBuffer:
    """Holds memory that CuPy allocated."""

    def __init__(self, memory: Any, nbytes: int) -> None:
        self._memory = memory
        self.address: int = memory.ptr
        self.nbytes = nbytes

    def free(self) -> None:
        """Free the memory. CUDA first waits for the work that uses the memory."""
        self._memory = None


class CudaStream:
    """Wraps a CuPy stream."""

    def __init__(self, cupy: Any, ended: Any, faults: Faults) -> None:
        self.cupy = cupy
        self._ended = ended
        self._faults = faults

    def synchronize(self) -> None:
        """Sleep until the stream is done. CUDA's own function would keep a core busy while it
        waits."""
        with self._faults():
            self._ended.record(self.cupy)
            self._ended.synchronize()

    def wait(self, event: Event) -> None:
        with self._faults():
            self.cupy.wait_event(_own_event(event).cupy)


class CudaEvent:
    """Wraps a CuPy event."""

    def __init__(self, cupy: Any, elapsed: Callable[[Any, Any], float], faults: Faults) -> None:
        self.cupy = cupy
        self._elapsed = elapsed
        self._faults = faults

    def record(self, stream: Stream) -> None:
        with self._faults():
            self.cupy.record(_own(stream).cupy)

    def elapsed_ms(self, since: Event) -> float:
        with self._faults():
            return self._elapsed(_own_event(since).cupy, self.cupy)


class CudaGraph:
    """Wraps a graph that CuPy captured."""

    def __init__(self, faults: Faults) -> None:
        self.cupy: Any = None  # until the capture has ended
        self.arrays: list[NDArray[Any]] = []  # what it copies from and to, kept alive
        self._faults = faults

    def replay(self, stream: Stream) -> None:
        if self.cupy is None:
            raise DeviceError("a graph can be replayed only after its capture has ended")
        with self._faults():
            self.cupy.launch(_own(stream).cupy)


def count_devices() -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES lists. Raises DeviceError without CuPy or a GPU."""
    runtime = _cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"no CUDA device can be used: {error}") from error


def _own(stream: Stream) -> CudaStream:
    if not isinstance(stream, CudaStream):
        raise TypeError(f"{stream!r} is not a stream of a CUDA device")
    return stream


def _own_event(event: Event) -> CudaEvent:
    if not isinstance(event, CudaEvent):
        raise TypeError(f"{event!r} is not an event of a CUDA device")
    return event


def _raw_argument(argument: PlainArgument) -> Any:
    """Return an argument for RawKernel: a struct's bytes as one NumPy record, and any other
    argument unchanged."""
    return np.frombuffer(argument, f"V{len(argument)}") if isinstance(argument, bytes) else argument


def _address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("an array that is copied to or from a device must be C-contiguous")
    return array.ctypes.data


def _cupy() -> Any:
    try:
        import cupy  # noqa: PLC0415  (a machine that serves on its CPU has none)
    except ImportError as error:
        raise DeviceError(
            f"CuPy cannot be imported ({error}); {how_to_install('cuda13')} "
            "(or cuda12, to match the driver)"
        ) from error
    return cupy
