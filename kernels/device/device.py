"""The seam between the engine and what executes kernels: a GPU, or in tests the CPU.

    Instantiation ─ load ─> Kernel ─┐
    allocate ─> Buffer ─ address ───┴─ launch(kernel, grid, block, ...) on a Stream, or into a Graph

Work is asynchronous: a call that takes a stream returns at once, and what it asked for is done
after everything asked of that stream before. The host sees it done after `synchronize()`. Streams
do not wait for each other.

    DeviceError
    ├── CompilerNotFoundError  load: NVRTC is not installed (kernels/device/nvrtc.py)
    ├── CompileError      load: the source does not compile for this device
    ├── OutOfMemoryError  allocate, pinned: says what was needed and what was free
    ├── LaunchError       launch: refused before anything ran; names the kernel
    └── FaultError        synchronize: something asynchronous went wrong; the device is lost with it
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SOURCE_ROOT = Path(__file__).parents[1] / "src"
"""Where every .cu and .cuh lies."""

ALIGNMENT = 256
"""Bytes to which the address of a Buffer is aligned."""

Dim3 = tuple[int, int, int]
"""x, y, z of a grid (in blocks) or of a block (in threads)."""

TemplateArgument = int | bool | str
"""An integer, a truth value, or C++ as it stands: a type or an enumerator."""

Argument = int | np.int32 | np.uint32 | np.int64 | np.float32 | bytes
"""One argument of a kernel. An `int` is a device address; a NumPy scalar is that C++ type by value;
`bytes` are a struct by value as C++ lays it out (`struct.pack`, or an aligned NumPy record's)."""


@dataclass(frozen=True, slots=True)
class Instantiation:
    """One kernel template with its arguments: all that Python ever says in C++.

    `source` is a file under SOURCE_ROOT, `kernel` the template's name in it, `arguments` its
    parameters in order, each under the name it has there (upper or lower case). A kernel that is no
    template has none.
    """

    source: str
    kernel: str
    arguments: tuple[tuple[str, TemplateArgument], ...] = ()

    @classmethod
    def of(cls, source: str, kernel: str, configuration: "DataclassInstance") -> "Instantiation":
        """The template's arguments are the fields of a frozen dataclass, in their order."""
        arguments = [
            (field.name, getattr(configuration, field.name)) for field in fields(configuration)
        ]
        return cls(source, kernel, tuple(arguments))

    @property
    def expression(self) -> str:
        """The C++ name of the instantiation: `conv_direct<64, 32, true>`."""
        if not self.arguments:
            return self.kernel
        return f"{self.kernel}<{', '.join(_cpp(value) for _, value in self.arguments)}>"

    def __str__(self) -> str:
        return self.expression


def _cpp(value: TemplateArgument) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded instantiation; good for the device that loaded it.

    What the compiler made of it, per thread and block: None where the device cannot tell.
    `local_bytes` is memory for what found no register: spills, and arrays indexed at run time.
    """

    instantiation: Instantiation
    function: Any  # the device's own: CuPy's RawKernel, the simulator's number
    registers: int | None = None
    static_shared_bytes: int | None = None
    local_bytes: int | None = None

    def __str__(self) -> str:
        return self.instantiation.expression


def encode(argument: Argument) -> bytes:
    """The argument's bytes as the kernel's parameter holds them."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, np.generic):
        return argument.tobytes()
    return argument.to_bytes(8, "little")


class Memory(NamedTuple):
    """Device memory, in bytes."""

    free: int
    total: int


class Buffer(Protocol):
    """Device memory; its contents are undefined until written. An engine carves one into many."""

    @property
    def address(self) -> int:
        """Of the first byte, aligned to ALIGNMENT; `address + offset` is an address too."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    def free(self) -> None:
        """Give the memory back, once nothing asked of the device uses it any more."""


class Stream(Protocol):
    """A queue of work, done in order."""

    def synchronize(self) -> None:
        """Wait until all asked so far is done. Raises FaultError."""


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream) -> None:
        """Happen when all asked of `stream` so far is done."""

    def elapsed_ms(self, since: "Event") -> float:
        """Milliseconds on the device from `since` to this; both must have happened."""


class Graph(Protocol):
    """Work captured once, to be asked for again in one call."""

    def replay(self, stream: Stream) -> None:
        """Ask `stream` for the captured work, on the addresses and arrays it was captured with."""


class Device(Protocol):
    """What loads, stores and runs. Any thread may call it; a stream serves one thread at a time."""

    @property
    def name(self) -> str:
        """As its maker calls it: "NVIDIA H200"."""

    @property
    def architecture(self) -> str:
        """What kernels are compiled for: "80", "90a" ("sm_" left out), or "cusim"."""

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at once, where each fills a multiprocessor."""

    @property
    def max_shared_bytes(self) -> int:
        """Shared memory that a block may ask for, static and dynamic together."""

    @property
    def driver(self) -> str:
        """What drives it, with its version: "CUDA 13.0". What is measured holds for one."""

    @property
    def compiler(self) -> str:
        """What compiles its kernels, with its version. Raises CompilerNotFoundError."""

    @property
    def peak_flops(self) -> float:
        """Fp32 operations a second at its highest clock, a multiply-add being two."""

    @property
    def peak_bandwidth(self) -> float:
        """Bytes a second to and from its memory, at its highest clock."""

    def load(self, instantiation: Instantiation) -> Kernel:
        """Compile, or find compiled, and load. Raises CompileError with the compiler's words.

        Threads may load at once; what is compiled for one is not waited for by another.
        """

    def allocate(self, nbytes: int) -> Buffer:
        """Device memory. Raises OutOfMemoryError. Slow, and it may wait for the device."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that copies to and from the device without the host waiting for them."""

    def memory(self) -> Memory:
        """What is free now."""

    def stream(self) -> Stream:
        """A new stream."""

    def event(self) -> Event:
        """A new event, not recorded yet."""

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        """Copy a C-contiguous array to a device address; it must not change until that is done."""

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        """Copy from a device address into all of a C-contiguous array, there only when done."""

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
    ) -> None:
        """Run `kernel` with `shared_bytes` of dynamic shared memory a block.

        Raises LaunchError where the device refuses (too many threads, too much shared memory).
        Arguments are copied now: they need not outlive the call.
        """

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Within the block, what `stream` is asked is written into the graph instead of done.

        Nothing may be allocated, loaded or synchronised meanwhile; the graph can be replayed once
        the block has ended, and keeps what it uses alive but for Buffers.
        """

    def synchronize(self) -> None:
        """Wait until all asked of any stream is done. Raises FaultError."""


class DeviceError(Exception):
    """Something that a device could not do."""


class CompileError(DeviceError):
    """A kernel does not compile; the compiler's words follow."""

    def __init__(self, instantiation: Instantiation, log: str) -> None:
        super().__init__(f"{instantiation} of {instantiation.source} does not compile:\n{log}")
        self.instantiation = instantiation
        self.log = log


class OutOfMemoryError(DeviceError):
    """An allocation larger than what is free; both in bytes."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"out of device memory: {needed:,} bytes needed, {free:,} free")
        self.needed = needed
        self.free = free


class LaunchError(DeviceError):
    """A launch that the device refuses."""

    def __init__(self, kernel: Kernel, reason: str) -> None:
        super().__init__(f"cannot launch {kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class FaultError(DeviceError):
    """What ran asynchronously failed (an illegal address, say); the device takes no more work."""
