"""Runs a captured CUDA graph on batches of one size and kind. It copies images to pinned memory,
replays the graph, and returns results.

The graph's last kernel writes each image's results to pinned memory and then sets the image's flag.
If the last batch took less than SPIN_S, the engine's thread polls these flags. Polling notices the
end of the batch at once, but occupies a core. If the last batch took longer, or after SPIN_S of
polling, the thread calls the driver's blocking wait, which releases the GIL.
"""

from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import DeviceError, Graph, Stream
from models.engines.engine import Batch

Put = Callable[[NDArray[Any], Any], None]
"""Copies an image to the pinned memory that is reserved for it."""

SPIN_S = 100e-6
"""The longest time to poll. Polling holds the GIL, so an event loop is blocked meanwhile."""

HOST_GB_PER_S = 50.0
"""The assumed rate of copies between pinned memory and a GPU over PCIe 5."""

KERNEL_GB_PER_S = 20.0
"""The assumed rate of a kernel that reads pinned memory, in units of a warp's 96 bytes."""

COPY_NODE_US = 1.8
"""The assumed fixed time of a copy in a graph. The copy is an additional node, which runs on
another engine of the GPU."""


def kernel_reads_host(nbytes: int) -> bool:
    """Return whether the first kernel should read pinned memory directly, without a copy to the
    GPU's memory.

    The constants above give the time of a copy, and the time of a kernel that reads each byte once.
    According to them, the kernel is faster without the copy up to 60 kB.
    """
    copied_us = COPY_NODE_US + nbytes / (1e3 * HOST_GB_PER_S)
    return nbytes / (1e3 * KERNEL_GB_PER_S) <= copied_us


class Replay:
    """Holds a captured graph and its pinned memory. One thread at a time may run it."""

    def __init__(
        self,
        graph: Graph,
        stream: Stream,
        images: NDArray[np.uint8] | NDArray[np.float32],
        results: NDArray[np.float32],
        put: Put = np.copyto,
    ) -> None:
        """Store a captured graph that reads `images` and writes `results`, one row per image. Both
        arrays are in pinned memory. A row of results has the layout of `Results` in
        kernels/operations/top_k.py."""
        self.graph, self._stream, self._put = graph, stream, put
        self._places = list(images)
        self._results, self._flags = results, results[:, -1]
        self._seen = self._flags.data  # a memoryview: read faster than an array
        self._expected_s = inf  # the last run's time

    def run(self, images: Batch) -> NDArray[np.float32]:
        """Replay the graph on these images, and return n rows of results. Raises DeviceError."""
        for place, image in zip(self._places, images, strict=True):
            self._put(place, image)
        self._flags[...] = 0
        began = perf_counter()
        self.graph.replay(self._stream)
        if self._expected_s > SPIN_S or not self._spin(began + SPIN_S):
            self._stream.synchronize()
            if not all(self._seen):
                raise DeviceError("the batch ended, but some of its results are missing")
        self._expected_s = perf_counter() - began
        return self._results.copy()

    def _spin(self, until: float) -> bool:
        """Poll until the flags of all images are set, or until the time `until`. Return whether all
        flags are set."""
        for index in range(len(self._seen)):
            while not self._seen[index]:
                if perf_counter() > until:
                    return False
        return True
