"""Implements a Device that does nothing and takes no time. So the time of a call is the engine's
own time.

A replay only sets the flags for which the engine waits.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import (
    ALIGNMENT,
    NO_CLUSTERS,
    Argument,
    Dim3,
    Event,
    Graph,
    Instantiation,
    Kernel,
    Memory,
    PlainArgument,
    Stream,
)
from kernels.device.gpus import H200

_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class NullBuffer:
    """Replaces a buffer. It has addresses but no memory."""

    nbytes: int
    address: int = ALIGNMENT

    def free(self) -> None:
        pass


class NullStream:
    """Replaces a stream. Nothing runs on it."""

    def synchronize(self) -> None:
        pass

    def wait(self, event: Event) -> None:
        pass


class NullEvent:
    """Replaces an event. The event has always occurred."""

    def record(self, stream: Stream) -> None:
        pass

    def elapsed_ms(self, since: Event) -> float:
        return 0.0


@dataclass(slots=True)
class NullGraph:
    """Replaces a graph. A replay only sets the flags for which the engine waits."""

    flags: NDArray[np.float32] | None = None

    def replay(self, stream: Stream) -> None:
        if self.flags is not None:
            self.flags[...] = 1


class NullDevice:
    """Implements Device without computing. It has the properties of an H200, so plans are made for
    an H200."""

    name = "null device"
    architecture = H200.architecture
    multiprocessors = H200.multiprocessors
    max_shared_bytes = H200.max_shared_bytes
    driver = compiler = "none"
    overlaps = True
    peak_flops, peak_bandwidth = H200.peak_flops, H200.peak_bandwidth

    def __init__(self) -> None:
        self._graph: NullGraph | None = None  # being captured

    def compile(
        self, instantiations: Iterable[Instantiation], threads: int = 0
    ) -> Iterator[Instantiation]:
        return iter(instantiations)

    def load(self, instantiation: Instantiation) -> Kernel:
        return Kernel(instantiation, None)

    def allocate(self, nbytes: int, *, constant: bool = False) -> NullBuffer:
        return NullBuffer(nbytes)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def address(self, pinned: NDArray[Any]) -> int:
        return pinned.ctypes.data

    def memory(self) -> Memory:
        return Memory(_BYTES, _BYTES)

    def stream(self) -> NullStream:
        return NullStream()

    def event(self) -> NullEvent:
        return NullEvent()

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        pass

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        pass

    def fill(self, destination: int, nbytes: int, value: int, stream: Stream) -> None:
        pass

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
        flags = flags_of(kernel, grid, arguments)
        if flags is not None:
            flags[...] = 1
            if self._graph is not None:
                self._graph.flags = flags

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[NullGraph]:
        self._graph = graph = NullGraph()
        yield graph
        self._graph = None

    def early_launches(self, graph: Graph) -> int:
        return 0

    def synchronize(self) -> None:
        pass


def flags_of(
    kernel: Kernel, grid: Dim3, arguments: Sequence[Argument]
) -> NDArray[np.float32] | None:
    """Return the last float of each image's results. Its value marks the results as complete
    (top_k.py). Return None if no launch writes results."""
    if kernel.instantiation.kernel != "top_k":
        return None
    plain = cast("Sequence[PlainArgument]", arguments)  # it takes no tensor maps
    _, _, y, classes, _, k, *_ = plain  # of kernels/src/top_k.cu
    pitch = int(classes) + 2 * int(k) + 1
    floats = (ctypes.c_float * (grid[0] * pitch)).from_address(int(y))
    return np.ctypeslib.as_array(floats).reshape(grid[0], pitch)[:, -1]
