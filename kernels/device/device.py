"""Defines the interface between the engine and a device: a GPU, or the simulator in tests.

    Instantiation ─ compile, load ─> Kernel ─┐
    allocate ─> Buffer ─ address ────────────┴─ launch(kernel, ...) on a Stream, or into a Graph

Work is asynchronous. A call that takes a stream returns at once, and its work runs after all
earlier work of that stream. The host may rely on the results after `synchronize()`. Streams do not
wait for each other.

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
"""An integer, a Boolean, or C++ text that names a type or an enumerator."""

PlainArgument = int | np.int32 | np.uint32 | np.int64 | np.float32 | bytes
"""An argument whose bytes are the same on all devices. An `int` is a device address. A NumPy scalar
is passed by value as the same C++ type. `bytes` are a struct by value in the layout of C++ (from
`struct.pack` or an aligned NumPy record)."""

Argument = PlainArgument | TensorMap
"""One argument of a kernel: a plain argument, or the description of a tensor at an address, from
which each device makes its own 128 bytes."""


@unique
class Trigger(Enum):
    """Names the point in a kernel at which the next launch may begin (kernels/src/dependent.cuh).

    The kernel is compiled with this value as the macro TRIGGER. The next launch may begin once
    every block has reached this point or ended.
    """

    START = 0
    EPILOGUE = 1  # once its sums are complete
    END = 2


@unique
class Variant(Enum):
    """Names a compile-time variant of a kernel. A variant changes how the kernel loads weights
    before it waits for the previous launch (kernels/src/dependent.cuh)."""

    LATE_WEIGHTS = "WEIGHTS_FIRST=0"  # the first weights are copied behind the wait
    PREFETCH = "PREFETCH=1"  # the weights are brought to the L2 cache


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A kernel template with its arguments.

    `source` is a file under SOURCE_ROOT, and `kernel` is the template's name in that file.
    `arguments` has each template parameter's name, in upper or lower case, with its argument, in
    the order of the parameters. If the kernel is not a template, `arguments` is empty. The kernel
    is compiled only for `architectures`.
    """

    source: str
    kernel: str
    arguments: tuple[tuple[str, TemplateArgument], ...] = ()
    trigger: Trigger = Trigger.START
    variants: tuple[Variant, ...] = ()
    architectures: Architectures = ALL

    @classmethod
    def of(cls, source: str, kernel: str, configuration: "DataclassInstance") -> "Instantiation":
        """Return an instantiation. The fields of `configuration`, a frozen dataclass, are its
        template arguments."""
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
        """Return the compiler flags that define the trigger and the variants as macros."""
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
    """An instantiation that a device has loaded, and that can run on this device.

    `registers`, `static_shared_bytes` and `local_bytes` are None if the device does not report
    them. `local_bytes` counts data that does not fit into registers: spills, and arrays that are
    indexed at run time.
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
    """Device memory, whose contents are undefined until written. An engine stores many tensors in
    one Buffer."""

    @property
    def address(self) -> int:
        """Return the address of the first byte, a multiple of ALIGNMENT. To address another byte,
        add its offset."""

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""

    def free(self) -> None:
        """Free the memory, which no pending work may use."""


class Stream(Protocol):
    """A queue of work that is done in order."""

    def synchronize(self) -> None:
        """Wait until all work of the stream so far is done. Raises FaultError."""

    def wait(self, event: "Event") -> None:
        """Make later work of this stream wait until the event has happened."""


class Event(Protocol):
    """A point in the work of a stream. The event happens when the work before this point is
    done."""

    def record(self, stream: Stream) -> None:
        """Insert the event into `stream`, after all work that the stream has so far."""

    def elapsed_ms(self, since: "Event") -> float:
        """Return the milliseconds from `since` to this event. Both events must have happened."""


class Graph(Protocol):
    """Captured work, which one call can replay any number of times."""

    def replay(self, stream: Stream) -> None:
        """Enqueue the captured work on `stream`, with the same addresses and arrays as during the
        capture."""


class Device(Protocol):
    """A GPU or the simulator. Any thread may call its methods, but only one thread at a time may
    use a stream."""

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
        """Return the driver and its version, such as "CUDA 13.0". A measurement is valid only for
        the driver with which it was made."""

    @property
    def compiler(self) -> str:
        """Return the version of the compiler that compiles kernels. Raises
        CompilerNotFoundError."""

    @property
    def peak_flops(self) -> float:
        """Return the fp32 operations per second at the highest clock. A multiply-add counts as
        two."""

    @property
    def peak_bandwidth(self) -> float:
        """Return the bytes per second to and from memory at the highest memory clock."""

    @property
    def overlaps(self) -> bool:
        """Return whether a dependent launch may begin before the previous launch has ended."""

    def compile(
        self, instantiations: Iterable[Instantiation], threads: int = 0
    ) -> Iterator[Instantiation]:
        """Compile, in parallel, the kernels that are missing in the cache. Yield each kernel once
        it is cached.

        `threads` is the number of threads, where 0 stands for one per core. A kernel that does not
        compile is yielded too, and `load` raises its error. Raises CompilerNotFoundError.
        """

    def load(self, instantiation: Instantiation) -> Kernel:
        """Load a kernel from the cache, or compile it. Raises CompileError with the compiler's log.

        Several threads may load kernels at the same time, and do not wait for each other.
        """

    def allocate(self, nbytes: int, *, constant: bool = False) -> Buffer:
        """Allocate device memory. This is slow and may wait for the device. Raises
        OutOfMemoryError.

        If `constant`, no kernel may write the memory, such as weights. Dependent launches may
        therefore read it before the previous launch has ended.
        """

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Return pinned host memory. The device can copy to and from this memory asynchronously."""

    def address(self, pinned: NDArray[Any]) -> int:
        """Return the address at which kernels access an array in pinned memory."""

    def memory(self) -> Memory:
        """Return the device's free and total memory."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self) -> Event:
        """Return a new event, not recorded yet."""

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        """Copy a C-contiguous array to a device address. The array must not change until the copy
        is done."""

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        """Copy from a device address into a C-contiguous array. The array is valid once the copy is
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

        `cluster` is the number of blocks of a cluster along each axis, at most 8 blocks in all. The
        blocks of a cluster run at the same time and can access each other's shared memory
        (kernels/src/cluster.cuh). Along each axis, the grid must be a multiple of `cluster`.

        If `dependent`, the launch may begin before the previous launch in the stream has ended, as
        kernels/src/dependent.cuh allows.

        Arguments are copied before the call returns. Raises LaunchError if the device refuses the
        launch: too many threads, too much shared memory, or no support for clusters.
        """

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """While the `with` block runs, record the work of `stream` into a graph instead of
        executing it.

        If another stream waits for an event that was recorded inside the block, its work is
        captured too, as a parallel branch of the graph. Before the block ends, `stream` must wait
        for the end of each branch. Allocating, loading and synchronising are not allowed inside the
        block. The graph can be replayed once the block has ended. The graph keeps its arrays and
        kernels alive, but not its Buffers.
        """

    def early_launches(self, graph: Graph) -> int:
        """Return how many launches of a captured graph may begin before the previous launch has
        ended.

        During a capture, the driver may make some dependent launches wait for the end of the
        previous launch. Only this number shows how many launches do not wait.
        """

    def synchronize(self) -> None:
        """Wait until all work of all streams is done. Raises FaultError."""


class DeviceError(Exception):
    """Raised when a device operation fails."""


class CompileError(DeviceError):
    """Raised when a kernel does not compile; contains the compiler's log."""

    def __init__(self, instantiation: Instantiation, log: str) -> None:
        super().__init__(f"{instantiation} of {instantiation.source} does not compile:\n{log}")
        self.instantiation = instantiation
        self.log = log


class OutOfMemoryError(DeviceError):
    """Raised when device memory is full; contains the bytes needed and the bytes free."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"out of device memory: {needed:,} bytes are needed, but only {free:,} are free"
        )
        self.needed = needed
        self.free = free


class LaunchError(DeviceError):
    """Raised when the device refuses a launch; contains the reason."""

    def __init__(self, kernel: Kernel, reason: str) -> None:
        super().__init__(f"cannot launch {kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class FaultError(DeviceError):
    """Raised when asynchronous work has failed, for example at an illegal address. The device
    accepts no more work."""
