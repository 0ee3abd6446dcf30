# ruff: noqa: ARG002  (arguments of the interface)
"""A Device that computes nothing and takes no time: what is left of a call is the engine's own.

A replay sets the flags that the engine waits for, and does nothing else.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import (
    ALIGNMENT,
    Argument,
    Dim3,
    Event,
    Graph,
    Instantiation,
    Kernel,
    Memory,
    Stream,
)
from kernels.device.gpus import H200

_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class NullBuffer:
    """Addresses without memory."""

    nbytes: int
    address: int = ALIGNMENT

    def free(self) -> None:
        """See Buffer."""


class NullStream:
    """See Stream."""

    def synchronize(self) -> None:
        """See Stream."""

    def wait(self, event: Event) -> None:
        """See Stream."""


class NullEvent:
    """See Event."""

    def record(self, stream: Stream) -> None:
        """See Event."""

    def elapsed_ms(self, since: Event) -> float:
        """See Event."""
        return 0.0


@dataclass(slots=True)
class NullGraph:
    """See Graph."""

    flags: NDArray[np.float32] | None = None

    def replay(self, stream: Stream) -> None:
        """See Graph."""
        if self.flags is not None:
            self.flags[...] = 1


class NullDevice:
    """See Device; its multiprocessors are an H200's, so that plans are."""

    name = "null device"
    architecture = H200.architecture
    multiprocessors = H200.multiprocessors
    max_shared_bytes = H200.max_shared_bytes
    driver = compiler = "none"
    overlaps = True
    peak_flops, peak_bandwidth = H200.peak_flops, H200.peak_bandwidth

    def __init__(self) -> None:
        self._graph: NullGraph | None = None  # being captured

    def load(self, instantiation: Instantiation) -> Kernel:
        """See Device."""
        return Kernel(instantiation, None)

    def allocate(self, nbytes: int, *, constant: bool = False) -> NullBuffer:
        """See Device."""
        return NullBuffer(nbytes)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """See Device."""
        return np.zeros(nbytes, np.uint8)

    def address(self, pinned: NDArray[Any]) -> int:
        """See Device."""
        return pinned.ctypes.data

    def memory(self) -> Memory:
        """See Device."""
        return Memory(_BYTES, _BYTES)

    def stream(self) -> NullStream:
        """See Device."""
        return NullStream()

    def event(self) -> NullEvent:
        """See Device."""
        return NullEvent()

    def upload(self, destination: int, source: NDArray[Any], stream: Stream) -> None:
        """See Device."""

    def download(self, destination: NDArray[Any], source: int, stream: Stream) -> None:
        """See Device."""

    def fill(self, destination: int, nbytes: int, value: int, stream: Stream) -> None:
        """See Device."""

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
    ) -> None:
        """See Device."""
        if kernel.instantiation.kernel == "top_k":
            flags = _flags(grid[0], *map(int, arguments))
            flags[...] = 1
            if self._graph is not None:
                self._graph.flags = flags

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[NullGraph]:
        """See Device."""
        self._graph = graph = NullGraph()
        yield graph
        self._graph = None

    def early_launches(self, graph: Graph) -> int:
        """See Device."""
        return 0

    def synchronize(self) -> None:
        """See Device."""


def _flags(n: int, _: int, y: int, classes: int, __: int, k: int) -> NDArray[np.float32]:
    """The last float of each image's results (kernels/operations/top_k.py)."""
    pitch = classes + 2 * k + 1
    floats = (ctypes.c_float * (n * pitch)).from_address(y)
    return np.ctypeslib.as_array(floats).reshape(n, pitch)[:, -1]
