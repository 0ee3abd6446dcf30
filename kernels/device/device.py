"""Defines the interface between the engine and a device: a GPU, or in tests the CPU.

    Instantiation ─ compile, load ─> Kernel ─┐
    allocate ─> Buffer ─ address ────────────┴─ launch(kernel, ...) on a Stream, or into a Graph

Work is asynchronous: a call that takes a stream returns at once, and its work is done after all
earlier work of that stream. It is complete for the host after `synchronize()`. Streams do not wait
for each other.

    DeviceError
    ├── CompilerNotFoundError  compile, load: NVRTC is not installed (kernels/device/nvrtc.py)
    ├── CompileError      load: the source does not compile for this device
    ├── OutOfMemoryError  allocate, pinned: with the bytes needed and free
    ├── LaunchError       launch: refused before anything ran; names the kernel
    └── FaultError        synchronize: asynchronous work failed; the device cannot be used any more
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from enum import Enum, unique
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.device.tensor_map import TensorMap
from kernels.problems.architectures import ALL, Architectures

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SOURCE_ROOT = Path(__file__).parents[1] / "src"
"""The folder of every .cu and .cuh."""

ALIGNMENT = 256
"""The address of a Buffer is a multiple of this number of bytes."""

Dim3 = tuple[int, int, int]
"""x, y, z of a grid or a cluster (in blocks), or of a block (in threads)."""

NO_CLUSTERS: Dim3 = (1, 1, 1)
"""The cluster size of a launch without clusters."""

TemplateArgument = int | bool | str
"""An integer, a truth value, or C++ text that names a type or an enumerator."""

PlainArgument = int | np.int32 | np.uint32 | np.int64 | np.float32 | bytes
"""An argument whose bytes are the same on all devices. An `int` is a device address; a NumPy scalar
is that C++ type by value; `bytes` are a struct by value as C++ lays it out (`struct.pack`, or an
aligned NumPy record's)."""

Argument = PlainArgument | TensorMap
"""One argument of a kernel: plain, or a tensor's description, bound to an address, of which each
device makes its own 128 bytes."""


@unique
class Trigger(Enum):
    """Names the point at which a kernel lets the next launch begin (kernels/src/dependent.cuh).

    The value is the macro TRIGGER there. A block that ends lets it begin in any case.
    """

    START = 0
    EPILOGUE = 1  # once its sums are complete
    END = 2


@unique
class Variant(Enum):
    """Names a change to what a kernel does before it waits (kernels/src/dependent.cuh)."""

    LATE_WEIGHTS = "WEIGHTS_FIRST=0"  # the first weights are copied behind the wait
    PREFETCH = "PREFETCH=1"  # the weights are brought to the L2 cache


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A kernel template with its arguments: the only C++ that Python generates.

    `source` is a file under SOURCE_ROOT, `kernel` the template's name in it, `arguments` its
    parameters in order, each by its name there (upper or lower case). A kernel that is not a
    template has none. It is compiled for `architectures` alone.
    """

    source: str
    kernel: str
    arguments: tuple[tuple[str, TemplateArgument], ...] = ()
    trigger: Trigger = Trigger.START
    variants: tuple[Variant, ...] = ()
    architectures: Architectures = ALL

    @classmethod
    def of(cls, source: str, kernel: str, configuration: "DataclassInstance") -> "Instantiation":
        """Return the instantiation whose template arguments are a frozen dataclass's fields, in
        order.
        """
        arguments = [
            (field.name, getattr(configuration, field.name)) for field in fields(configuration)
        ]
        return cls(source, kernel, tuple(arguments))

    @property
    def expression(self) -> str:
        """Return the C++ name of the instantiation: `conv_direct<64, 32, true>`."""
        if not self.arguments:
            return self.kernel
        return f"{self.kernel}<{', '.join(_cpp(value) for _, value in self.arguments)}>"

    @property
    def macros(self) -> tuple[str, ...]:
        """Return the compiler flags that define macros; there are none if all settings are the
        defaults."""
        chosen = self.trigger is not Trigger.START
        return (
            *([f"-DTRIGGER={self.trigger.value}"] if chosen else []),
            *(f"-D{variant.value}" for variant in self.variants),
        )

    def __str__(self) -> str:
        return self.expression


def _cpp(value: TemplateArgument) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded instantiation, which can run on the device that loaded it.

    Its resources per thread and block are None where the device does not report them.
    `local_bytes` is memory instead of registers: spills, and arrays indexed at run time.
    """

    instantiation: Instantiation
    function: Any  # the device's own: CuPy's RawKernel, the simulator's number
    registers: int | None = None
    static_shared_bytes: int | None = None
    local_bytes: int | None = None

    def __str__(self) -> str:
        return self.instantiation.expression


def encode(argument: PlainArgument) -> bytes:
    """Return the argument's bytes, laid out like the kernel's parameter."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, np.generic):
        return argument.tobytes()
    return argument.to_bytes(8, "little")


class Memory(NamedTuple):
    """Holds the sizes of a device's memory in bytes."""

    free: int
    total: int


class Buffer(Protocol):
    """Device memory, undefined until written. An engine divides one into many."""

    @property
    def address(self) -> int:
        """Return the first byte's address, a multiple of ALIGNMENT; offsets may be added to it."""

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""

    def free(self) -> None:
        """Free the memory; no pending work may use it."""


class Stream(Protocol):
    """A queue of work that is done in order."""

    def synchronize(self) -> None:
        """Wait until all work so far is done. Raises FaultError."""

    def wait(self, event: "Event") -> None:
        """Make later work of this stream wait until the event has happened."""


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Stream) -> None:
        """Make the event happen when all work of `stream` so far is done."""

    def elapsed_ms(self, since: "Event") -> float:
        """Return the milliseconds between `since` and this event, both of which must have
        happened."""


class Graph(Protocol):
    """Work captured once, to be replayed in one call."""

    def replay(self, stream: Stream) -> None:
        """Enqueue the captured work on `stream`; it uses the addresses and arrays of the
        capture."""


class Device(Protocol):
    """A device. Any thread may call it; only one thread at a time may use a stream."""

    @property
    def name(self) -> str:
        """Return the product's name: "NVIDIA H200"."""

    @property
    def architecture(self) -> str:
        """Return the architecture that kernels are compiled for, such as "80", "90a" or "cusim"."""

    @property
    def multiprocessors(self) -> int:
        """Return the number of multiprocessors."""

    @property
    def max_shared_bytes(self) -> int:
        """Return the largest shared memory of a block in bytes, static and dynamic together."""

    @property
    def driver(self) -> str:
        """Return the driver and its version, such as "CUDA 13.0"; measurements are valid for one
        driver."""

    @property
    def compiler(self) -> str:
        """Return the version of the compiler of kernels. Raises CompilerNotFoundError."""

    @property
    def peak_flops(self) -> float:
        """Return the fp32 operations per second at the highest clock; a multiply-add counts
        as two."""

    @property
    def peak_bandwidth(self) -> float:
        """Return the bytes per second to and from memory at its highest clock."""

    @property
    def overlaps(self) -> bool:
        """Return whether a dependent launch may begin before the previous one has ended."""

    def compile(
        self, instantiations: Iterable[Instantiation], threads: int = 0
    ) -> Iterator[Instantiation]:
        """Compile what the cache lacks, all at once, and yield each kernel once it is there.

        It takes as many `threads`; 0 is one for each core. A kernel that does not compile is
        yielded like the others: `load` has the error. Raises CompilerNotFoundError.
        """

    def load(self, instantiation: Instantiation) -> Kernel:
        """Load a kernel from the cache, or compile it. Raises CompileError with the compiler's log.

        Threads may load concurrently and do not wait for each other's compilation.
        """

    def allocate(self, nbytes: int, *, constant: bool = False) -> Buffer:
        """Allocate device memory; this is slow and may wait for the device. Raises
        OutOfMemoryError.

        No kernel writes what is `constant`, such as weights: dependent launches may read it early.
        """

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Return pinned host memory, which can be copied to and from the device asynchronously."""

    def address(self, pinned: NDArray[Any]) -> int:
        """Return the address by which kernels access pinned memory, or a part of it."""

    def memory(self) -> Memory:
        """Return the device's free and total memory."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self) -> Event:
        """Return a new event, not recorded yet."""

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        """Copy a C-contiguous array to a device address; do not change the array until the copy is
        done."""

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        """Copy from a device address into a C-contiguous array, which is valid once the copy is
        done."""

    def fill(self, destination: int, nbytes: int, value: int, stream: Stream) -> None:
        """Set each of `nbytes` bytes to `value`, 0..255."""

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
        """Run `kernel` with `shared_bytes` of dynamic shared memory for each block.

        Every `cluster` of blocks, of which the grid is a multiple along each axis, run at the same
        time and reach each other's shared memory (kernels/src/cluster.cuh); at most 8 of them.

        If `dependent`, it may begin before the launch right before it in the stream has ended, as
        far as the rule of kernels/src/dependent.cuh allows.

        Raises LaunchError where the device refuses (too many threads, too much shared memory, no
        clusters).
        Arguments are copied now: they need not outlive the call.
        """

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Record work on `stream` within this block into the graph, instead of executing it.

        So is the work of streams that wait for events recorded meanwhile, and the graph has their
        branches in parallel; `stream` must wait for the end of each before the block ends. No
        allocation, load or synchronisation is allowed meanwhile. The graph can be replayed once the
        block has ended. It keeps the arrays and kernels it uses alive, but not the Buffers.
        """

    def early_launches(self, graph: Graph) -> int:
        """Return how many launches of a captured graph may begin before the previous one has ended.

        A GPU's capture may add full dependencies between dependent launches, which only this shows.
        """

    def synchronize(self) -> None:
        """Wait until all work of all streams is done. Raises FaultError."""


class DeviceError(Exception):
    """Says that a device operation failed."""


class CompileError(DeviceError):
    """Says that a kernel does not compile, with the compiler's log."""

    def __init__(self, instantiation: Instantiation, log: str) -> None:
        super().__init__(f"{instantiation} of {instantiation.source} does not compile:\n{log}")
        self.instantiation = instantiation
        self.log = log


class OutOfMemoryError(DeviceError):
    """Says how many bytes an allocation needed, and how many were free."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"out of device memory: {needed:,} bytes needed, {free:,} free")
        self.needed = needed
        self.free = free


class LaunchError(DeviceError):
    """Says why the device refuses a launch."""

    def __init__(self, kernel: Kernel, reason: str) -> None:
        super().__init__(f"cannot launch {kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class FaultError(DeviceError):
    """Says that asynchronous work failed (an illegal address, say); the device accepts no more."""
