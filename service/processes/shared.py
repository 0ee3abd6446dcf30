"""What all processes of one service see, in memory that they share.

    status   state, queue and speed of a model      the main process writes
    inside   images inside, a row a worker          the worker writes
    counts   a row a process, see `Counts`          the process writes; the rows add up
    images   decoded pixels, a slot an image        the worker writes, the engine reads
    scores   of the image in the same slot          the main process writes, the worker reads

Each worker has slots of its own. It may use a slot again once the request is withdrawn, even while
a batch reads it: that batch's scores for the request are dropped, and a model keeps images apart.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.hosting.admission import Admission
from service.hosting.pipeline import ModelInfo
from service.images.pool import Decoding
from service.telemetry.counts import Counts

# The cells of a status, and of a worker's row in `crew`.
STATE, DEPTH, RESTARTS, WAIT_S, BUSY_UNTIL, QUICKEST_S = range(6)
LISTENING, LOST_THREADS, REPLACED = range(3)

_LINE = 8  # numbers of a cache line, which no two processes write to


class Memory:
    """Arrays of zeros; pickled for a new process, the arrays taken there in the same order.

    An anonymous file: nothing is left behind however processes end, nothing counts against /dev/shm,
    which containers keep small, and pages that are never touched take no memory.
    """

    def __init__(self) -> None:
        self._file, self._size = os.memfd_create("convoy"), 0

    def array(self, shape: tuple[int, ...], kind: type[np.generic]) -> Any:
        """The next array."""
        size, offset = max(1, prod(shape) * np.dtype(kind).itemsize), self._size
        self._size += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if os.fstat(self._file).st_size < self._size:
            os.ftruncate(self._file, self._size)
        return np.ndarray(shape, kind, mmap.mmap(self._file, size, offset=offset))

    def rows(self, count: int, width: int, kind: type[np.generic] = np.int64) -> list[Any]:
        """The next rows of numbers; memoryviews, of which single numbers are read the fastest."""
        return list(map(memoryview, self.array((count, -(-width // _LINE) * _LINE), kind)))

    def __getstate__(self) -> Any:
        return DupFd(self._file)

    def __setstate__(self, file: Any) -> None:
        self._file, self._size = file.detach(), 0

    def __del__(self) -> None:
        os.close(self._file)  # what is mapped stays mapped


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of the main process, as a worker has to know it."""

    info: ModelInfo
    prepare: Callable[[bytes], Decoding]
    classes: int
    max_batch: int
    device: str
    max_images: int  # inside at once


class Shared:
    """One model's part of the memory."""

    def __init__(self, memory: Memory, model: RemoteModel, workers: int, width: int) -> None:
        """`width` is a row's of counts."""
        (self.status,) = memory.rows(1, QUICKEST_S + 1, np.float64)
        self.inside = memory.rows(workers, 1)
        self.counts = memory.rows(workers + 1, width)  # the main process has the last
        slots = (workers, model.max_images)
        self.images = memory.array((*slots, *model.info.image_shape), np.uint8)
        self.scores = memory.array((*slots, model.classes), np.float32)


class SharedCounts(Counts):
    """One process's counts of a model; all that it tells is of all processes."""

    def __init__(self, max_batch: int, rows: list[Any], own: int) -> None:
        """A process in another's place goes on from its counts, so they never go down."""
        super().__init__(max_batch)
        self.row, self._rows = rows[own], rows

    def rows(self) -> list[Any]:
        """All that add up."""
        return self._rows


class SharedAdmission(Admission):
    """An admission with one bound on the images inside all workers.

    Workers that admit at the same moment may exceed it, each by one request.
    """

    def __init__(self, like: Admission, inside: list[Any], own: int) -> None:
        """With the bounds that another has."""
        bounds = ("max_images", "max_images_a_request", "room", "expected_wait_s")
        super().__init__(**{name: getattr(like, name) for name in bounds})
        self._cells, self._own = inside, inside[own]

    @property
    def images(self) -> int:
        """Images inside all workers."""
        return sum(cell[0] for cell in self._cells)

    def add(self, images: int) -> None:
        """Count more in this worker, or fewer."""
        self._own[0] += images


class Crew(Collector):
    """Of each worker whether it listens, and what it lost; behind them, how many were replaced."""

    def __init__(self, memory: Memory, workers: int) -> None:
        *self.workers, self.all = memory.rows(workers + 1, REPLACED + 1)

    def lost_threads(self) -> int:
        """Decode threads that workers lost, those that were replaced too."""
        return sum(row[LOST_THREADS] for row in self.workers)

    def collect(self) -> Iterable[Metric]:
        """The workers, for Prometheus."""
        listening = sum(row[LISTENING] for row in self.workers)
        yield GaugeMetricFamily("convoy_workers", "Processes that accept connections.", listening)
        text = "Processes that ended, and another took the place of."
        yield CounterMetricFamily("convoy_workers_replaced", text, self.all[REPLACED])
