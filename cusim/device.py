"""Implements Device without a GPU: g++ compiles kernels, and the CPU runs one fiber per thread.

    CusimDevice ─ build ─ g++ ─ a kernel's library ──┐
          └────── process ─ socket, shared memory ───┴─ the simulator's process (runtime/)

If the behaviour of a kernel is undefined on a GPU, the simulator raises an error, or the result is
NaN. Examples are reads of memory that was never written, addresses outside a buffer, a missing wait
for a copy, and a barrier that not all threads reach.
"""

import struct
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from ctypes import c_uint8
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cusim import build as builds
from cusim.build import PLAIN, PROFILE, TSAN, Build
from cusim.heap import Heap
from cusim.process import Process, ProcessFault, RefusedError, Request
from cusim.streams import (
    CusimEvent,
    CusimGraph,
    CusimStream,
    PendingLaunch,
    Pick,
    Queues,
    capture,
    own_stream,
)
from kernels.device.compile import compile_each
from kernels.device.device import (
    NO_CLUSTERS,
    SOURCE_ROOT,
    Argument,
    CompileError,
    DeviceError,
    Dim3,
    FaultError,
    Graph,
    Instantiation,
    Kernel,
    LaunchError,
    Memory,
    OutOfMemoryError,
    Stream,
    encode,
)
from kernels.device.signature import parameters
from kernels.device.tensor_map import SWIZZLE_BYTES, TensorMap


class Order(IntEnum):
    """Lists the orders in which the simulator runs blocks and the threads of a block. A kernel's
    result must not depend on the order."""

    FORWARD = 0
    REVERSED = 1
    RANDOM = 2


POISON = 0xFF
"""The value of every byte that was never written: NaN as any float type, -1 as an integer."""

_PINNED_BYTES = 1 << 30  # address space; unused pages take no memory
_STATIC_SHARED_LIMIT = 48 << 10
_PADDING = 64  # the most bytes that g++ inserts before and between variables
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_TENSOR_MAP_BYTES, _TILED, _IM2COL = 128, 1, 2  # runtime.h's TensorMap: size, kinds
_MAX_CLUSTER = 8  # blocks; every GPU with clusters supports 8
_MAX_CLUSTER_THREADS = 4096  # the simulator has stacks for this number of threads


@dataclass(frozen=True, slots=True)
class CusimBuffer:
    """A buffer in the simulator's memory; implements kernels.device.device.Buffer."""

    device: "CusimDevice"
    address: int
    nbytes: int

    def free(self) -> None:
        self.device.release(self)


class CusimDevice:
    """Implements Device (kernels.device.device) with the simulator, which runs in its own process.

    `source_root` is the folder of the kernels' sources. A launch that takes longer than `timeout_s`
    seconds is stopped with a fault.
    """

    architecture = "cusim"
    max_shared_bytes = 227 << 10  # as an H100's
    driver = "cusim"
    compiler = "g++"
    overlaps = True
    peak_flops, peak_bandwidth = 1e9, 1e9  # arbitrary; shares of these rates are only printed

    def __init__(
        self,
        build: Build = PLAIN,
        order: Order = Order.FORWARD,
        seed: int = 0,
        *,
        source_root: Path = SOURCE_ROOT,
        multiprocessors: int = 4,
        memory_bytes: int = 4 << 30,
        timeout_s: int = 300,
    ) -> None:
        self.name = f"CPU simulator ({build.name}, {order.name.lower()})"
        self.multiprocessors = multiprocessors
        self.build = build
        self.order = order
        self.steps = 0  # how often a thread began or continued
        self.recorded = b""  # the last launch's records (accesses.py), if the build profiles
        self._seed = seed
        self._launches = 0
        self.source_root = source_root
        self._timeout_s = timeout_s
        self._heap, self._pinned = Heap(memory_bytes), Heap(_PINNED_BYTES)
        self._process = Process(build, self._heap.span + self._pinned.span)
        self._memory = np.frombuffer(self._process.memory, np.uint8)
        self._unpinned: deque[int] = deque()  # offsets of pinned arrays that were deleted
        picks: dict[Order, Pick] = {
            Order.FORWARD: min,
            Order.REVERSED: max,
            Order.RANDOM: Random(seed).choice,
        }
        self._queues = Queues(picks[order])
        self._kernels: dict[Instantiation, Kernel] = {}
        self._parameters: dict[int, list[str]] = {}  # parameters' kinds, by a kernel's handle
        self._unordered: dict[int, list[bool]] = {}  # per parameter, by a kernel's handle
        self._constant: set[int] = set()  # offsets of buffers that no kernel writes

    def close(self) -> None:
        """End the simulator's process."""
        self._process.close()

    def cpu_seconds(self) -> float:
        """Return the processor time that the simulator has used so far, in seconds. Other processes
        on this machine are not counted."""
        return self._process.cpu_seconds()

    def compile(
        self, instantiations: Iterable[Instantiation], threads: int = 0
    ) -> Iterator[Instantiation]:
        return compile_each(self._library, instantiations, threads)

    def _library(self, instantiation: Instantiation) -> Path:
        return builds.kernel(self.build, instantiation, self.source_root)

    def load(self, instantiation: Instantiation) -> Kernel:
        self._queues.refuse_capture("load")
        if instantiation not in self._kernels:
            self._kernels[instantiation] = self._load(instantiation)
        return self._kernels[instantiation]

    def _load(self, instantiation: Instantiation) -> Kernel:
        library = self._library(instantiation)
        try:
            answer = self._ask(Request.LOAD, _text(str(instantiation)) + _text(str(library)))
        except RefusedError as error:
            raise CompileError(instantiation, str(error)) from error
        function, shared = struct.unpack_from("<QQ", answer)
        self._parameters[function] = answer[16:].decode().split(",")[:-1]
        declared = parameters(self.source_root / instantiation.source, instantiation.kernel)
        self._unordered[function] = [
            parameter.restricted and not parameter.written for parameter in declared
        ]
        if self.build.macros:  # sanitizers put red zones between variables
            return Kernel(instantiation, function)
        if shared > _STATIC_SHARED_LIMIT + _PADDING:
            raise CompileError(
                instantiation,
                f"a kernel may have at most {_STATIC_SHARED_LIMIT} bytes of static shared memory,"
                f" got {shared}",
            )
        return Kernel(instantiation, function, static_shared_bytes=shared)

    def allocate(self, nbytes: int, *, constant: bool = False) -> CusimBuffer:
        self._queues.refuse_capture("allocate")
        offset = self._heap.allocate(nbytes)
        if offset is None:
            raise OutOfMemoryError(nbytes, self._heap.free)
        self._ask(Request.ALLOCATE, struct.pack("<QQI", offset, nbytes, constant))
        if constant:
            self._constant.add(offset)
        return CusimBuffer(self, self._process.base + offset, nbytes)

    def release(self, buffer: CusimBuffer) -> None:
        offset = buffer.address - self._process.base
        self._heap.release(offset)
        self._constant.discard(offset)
        self._ask(Request.FREE, struct.pack("<Q", offset))

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._queues.refuse_capture("allocate")
        while self._unpinned:
            gone = self._unpinned.popleft()
            self._pinned.release(gone - self._heap.span)
            self._ask(Request.FREE, struct.pack("<Q", gone))
        found = self._pinned.allocate(nbytes)
        if found is None:
            raise OutOfMemoryError(nbytes, self._pinned.free)
        offset = self._heap.span + found
        self._ask(Request.ALLOCATE, struct.pack("<QQI", offset, nbytes, False))
        # `memory` is deleted together with the last view of the array.
        memory = (c_uint8 * nbytes).from_buffer(self._process.memory, offset)
        weakref.finalize(memory, self._unpinned.append, offset)
        return np.ctypeslib.as_array(memory)

    def address(self, pinned: NDArray[Any]) -> int:
        return int(self._process.base + pinned.ctypes.data - self._memory.ctypes.data)

    def memory(self) -> Memory:
        return Memory(self._heap.free, self._heap.total)

    def stream(self) -> CusimStream:
        return CusimStream(self._queues)

    def event(self) -> CusimEvent:
        return CusimEvent(self._queues)

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        target, octets = self._view(destination, source.nbytes), _octets(source)
        own_stream(stream).ask(lambda: np.copyto(target, octets))

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        target, octets = _octets(destination), self._view(source, destination.nbytes)
        own_stream(stream).ask(lambda: np.copyto(target, octets))

    def fill(self, destination: int, nbytes: int, value: int, stream: Stream) -> None:
        target = self._view(destination, nbytes)
        own_stream(stream).ask(lambda: target.fill(value))

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
        reason = self._refusal(kernel, grid, block, shared_bytes, arguments, cluster)
        if reason is not None:
            raise LaunchError(kernel, reason)
        sizes = (*grid, *block, *cluster)
        head = struct.pack("<IQ9II", dependent, kernel.function, *sizes, shared_bytes)
        copies: list[CusimBuffer] = []
        begin = partial(self._begin, kernel, head, tuple(arguments), copies)
        run = partial(self._run, head, tuple(arguments), copies)
        own_stream(stream).ask(PendingLaunch(begin, run, early=dependent))

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        return capture(stream)

    def early_launches(self, graph: Graph) -> int:
        assert isinstance(graph, CusimGraph)
        return graph.early_launches

    def synchronize(self) -> None:
        self._queues.synchronize()

    def _how(self) -> bytes:
        self._launches += 1
        seed = self._seed + self._launches  # replays differ, but a run can be repeated
        return struct.pack("<IIQ", self.order, self._timeout_s, seed)

    def _begin(
        self,
        kernel: Kernel,
        head: bytes,
        arguments: Sequence[Argument],
        copies: list[CusimBuffer],
        ahead: bool,
    ) -> None:
        """Begin a launch. If `ahead` is true, earlier launches have not run yet.

        On a GPU, loads through `const T* __restrict__` may run before those launches, and then read
        the old data. Therefore each such pointer is replaced by a pointer to a copy of the buffer's
        present contents.
        """
        if ahead:
            unordered = self._unordered[kernel.function]
            arguments = [
                self._as_it_is(argument, copies)
                if pointer and isinstance(argument, int)
                else argument
                for argument, pointer in zip(arguments, unordered, strict=True)
            ]
        self._ask(Request.BEGIN, head + self._how() + _passed(arguments))

    def _as_it_is(self, address: int, copies: list[CusimBuffer]) -> int:
        """Copy the buffer that contains `address`, and return the corresponding address in the
        copy.

        If no kernel writes the buffer, return `address` itself.
        """
        found = self._heap.buffer(address - self._process.base)
        if found is None or found[0] in self._constant:
            return address
        offset, nbytes = found
        copies.append(self.allocate(nbytes))
        copy = copies[-1].address
        np.copyto(self._view(copy, nbytes), self._view(self._process.base + offset, nbytes))
        return copy + address - int(self._process.base) - offset

    def _run(
        self, head: bytes, arguments: Sequence[Argument], copies: list[CusimBuffer], begun: bool
    ) -> None:
        what = struct.pack("<I", begun) + head + self._how() + _passed(arguments)
        answer = self._ask(Request.LAUNCH, what)
        self.steps += struct.unpack_from("<Q", answer)[0]
        self.recorded = answer[8:]
        while copies:
            copies.pop().free()

    def _ask(self, request: Request, payload: bytes) -> bytes:
        try:
            return self._process.ask(request, payload)
        except ProcessFault as fault:
            raise FaultError(str(fault)) from None

    def _view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        offset = address - self._process.base
        if self._heap.buffer(offset, nbytes) is None:
            raise DeviceError(
                f"the {nbytes} bytes at {address:#x} that are copied must lie in one buffer"
            )
        return self._memory[offset : offset + nbytes]

    def _refusal(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        arguments: Sequence[Argument],
        cluster: Dim3,
    ) -> str | None:
        threads = prod(block)
        if not all(1 <= size <= most for size, most in zip(grid, _MAX_GRID, strict=True)):
            return f"the grid's axes must be from 1 to {_MAX_GRID}, got {grid}"
        if not all(1 <= size <= most for size, most in zip(block, _MAX_BLOCK, strict=True)):
            return f"the block's axes must be from 1 to {_MAX_BLOCK}, got {block}"
        if threads > _MAX_THREADS:
            return f"a block may have at most {_MAX_THREADS} threads, got {threads}"
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            return f"the grid must be a multiple of the cluster {cluster}, got {grid}"
        if prod(cluster) > _MAX_CLUSTER:
            return f"a cluster may have at most {_MAX_CLUSTER} blocks, got {cluster}"
        if prod(cluster) * threads > _MAX_CLUSTER_THREADS:
            return (
                f"a cluster may have at most {_MAX_CLUSTER_THREADS} threads in the simulator,"
                f" got {prod(cluster) * threads}"
            )
        if prod(cluster) > 1 and self.build in (TSAN, PROFILE):
            return f"the simulator's build {self.build.name} does not support clusters"
        shared = shared_bytes + (kernel.static_shared_bytes or 0)
        if shared_bytes < 0 or shared > self.max_shared_bytes:
            return (
                f"a block may have at most {self.max_shared_bytes} bytes of shared memory,"
                f" got {shared}"
            )
        expected = self._parameters[kernel.function]
        given = [_kind(argument) for argument in arguments]
        if given != expected:
            return f"the arguments must match the parameters {expected}, got {given}"
        return None


def _kind(argument: Argument) -> str:
    """Return the kind and the size in bytes of an argument, in the format of runtime.h's Entry.

    The kinds are p (pointer), i (integer), u (unsigned), f (float) and s (struct).
    """
    if isinstance(argument, TensorMap):
        return f"s{_TENSOR_MAP_BYTES}"
    if isinstance(argument, bytes):
        return f"s{len(argument)}"
    if isinstance(argument, np.generic):
        return f"{argument.dtype.kind}{argument.itemsize}"
    return "p8"


def _octets(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of the array's bytes. Raises ValueError if it is not C-contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError("an array that is copied to or from a device must be C-contiguous")
    return array.reshape(-1).view(np.uint8)


def _passed(arguments: Sequence[Argument]) -> bytes:
    plain = (
        _of_map(argument) if isinstance(argument, TensorMap) else encode(argument)
        for argument in arguments
    )
    return struct.pack("<I", len(arguments)) + b"".join(map(_prefixed, plain))


def _of_map(tensor: TensorMap) -> bytes:
    """Return the bytes of a `TensorMap` in the simulator's layout (runtime.h). NVIDIA does not
    publish the layout of the driver's tensor maps."""
    rank, windows = len(tensor.dims), tensor.windows
    packed = struct.pack(
        "<Q4I3I2H4B2B2b2b",
        tensor.base,
        *(*tensor.dims, *(1,) * (4 - rank)),
        *(*tensor.strides, *(0,) * (4 - rank)),
        tensor.row,
        tensor.rows,
        _TILED if windows is None else _IM2COL,
        rank,
        tensor.stored.itemsize,
        SWIZZLE_BYTES,
        *(number for pair in windows or ((1, 1), (0, 0), (0, 0)) for number in pair),
    )
    return packed.ljust(_TENSOR_MAP_BYTES, b"\0")


def _prefixed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def _text(text: str) -> bytes:
    return _prefixed(text.encode())
