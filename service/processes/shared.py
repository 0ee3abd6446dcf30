"""Lays out the memory that all processes of a service share.

    inside   images inside, a row per worker      the worker writes
    counts   a row per process, see `Counts`      the process writes; the rows add up
    images   of any kind, a slot each             the worker writes, the engine reads
    scores   of the image in the same slot        the main process writes, the worker reads
    flags    the same: why it is left to the worker
    inner    the same of values inside the network, where they are asked for

Each worker has slots of its own. It uses a slot again once the main process has answered the
request, or has answered that it is withdrawn: no batch reads the slot then.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from models import PLACE_BYTES, Image, Kind, WrittenImage
from service.hosting.admission import Admission
from service.hosting.pipeline import ModelInfo
from service.images.decode_pool import Decoding
from service.telemetry.counts import Counts

_LINE = 8  # numbers of a cache line, which no two processes write to


class Memory:
    """Makes shared arrays, initially zero; a pickled copy returns the same arrays in the same
    order.

    The memory is an anonymous file: it ends with the processes, does not count against /dev/shm,
    which containers keep small, and takes no space for pages that are never touched.
    """

    def __init__(self) -> None:
        self._file, self._size = os.memfd_create("convoy"), 0

    def array(self, shape: tuple[int, ...], kind: type[np.generic]) -> Any:
        """Return the next array, with this shape and type."""
        size, offset = max(1, prod(shape) * np.dtype(kind).itemsize), self._size
        self._size += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if os.fstat(self._file).st_size < self._size:
            os.ftruncate(self._file, self._size)
        return np.ndarray(shape, kind, mmap.mmap(self._file, size, offset=offset))

    def rows(self, count: int, width: int) -> list[Any]:
        """Return the next rows of int64 as memoryviews, which give single numbers faster than
        arrays."""
        array = self.array((count, -(-width // _LINE) * _LINE), np.int64)
        return [memoryview(row) for row in array]

    def __getstate__(self) -> Any:
        return DupFd(self._file)

    def __setstate__(self, file: Any) -> None:
        self._file, self._size = file.detach(), 0

    def __del__(self) -> None:
        os.close(self._file)  # what is mapped stays mapped


class ModelFacts(NamedTuple):
    """Describes a model of the main process to a worker."""

    info: ModelInfo
    prepare: Callable[[Any], Decoding]
    max_images: int  # inside at once
    classes: int
    max_batch: int
    device: str
    precision: str
    takes: Kind = Kind.TENSOR


class SharedModel:
    """Holds the part of the memory that belongs to one model."""

    def __init__(self, memory: Memory, workers: int, model: ModelFacts, max_batch: int) -> None:
        """Take the next arrays of `memory`; `max_batch` is that of the metrics."""
        self.inside = memory.rows(workers, 1)
        # The main process has the last row.
        self.counts = memory.rows(workers + 1, len(Counts(max_batch).row))
        slots = workers, model.max_images
        bytes_each = prod(model.info.image_shape)
        tensors = memory.array((*slots, *(model.info.tensor_shape or (bytes_each,))), np.float32)
        pixels = tensors.reshape(*slots, -1).view(np.uint8)[..., :bytes_each]
        # Slots of either kind, in the same memory.
        self.images = {
            Kind.PIXELS: pixels.reshape(*slots, *model.info.image_shape),
            Kind.TENSOR: tensors,
        }
        if model.takes >= Kind.DECODED:
            places = memory.array((*slots, PLACE_BYTES), np.uint8)
            self.images |= {Kind.DECODED: places, Kind.JPEG: places}
        self._shape = model.info.image_shape
        self.scores = memory.array((*slots, model.classes), np.float32)
        self.flags = memory.array(slots, np.int32)
        self.inner = {
            value.name: memory.array((*slots, *value.shape), np.float32)
            for value in model.info.inner
        }

    def slots(self, worker: int) -> Mapping[Kind, Any]:
        """Return a worker's slots for images, by their kind."""
        return {kind: slots[worker] for kind, slots in self.images.items()}

    def image(self, worker: int, slot: int, kind: Kind) -> Image:
        """Return the image in a slot, without copying it."""
        place = self.images[kind][worker, slot]
        return WrittenImage(place, self._shape) if kind >= Kind.DECODED else place


class SharedAdmission(Admission):
    """Limits the images in progress in all workers together, but always leaves each an equal share.

    A worker may use its share even where the others have reached the bound. Workers that admit at
    the same moment may exceed it by a request each.
    """

    def __init__(self, like: Admission, inside: Sequence[Any], own: int) -> None:
        """Use the limits of `like`; count this worker's images in `inside[own]`."""
        bounds = ("max_images", "max_images_a_request", "max_body_bytes", "room", "expected_wait_s")
        super().__init__(*[getattr(like, name) for name in bounds])
        self._rows, self._own = inside, inside[own]
        self._share = self.max_images // len(inside)

    @property
    @override
    def images(self) -> int:
        """Return the number of images in progress in all workers."""
        return sum(row[0] for row in self._rows)

    @override
    def add(self, images: int) -> None:
        self._own[0] += images

    @override
    def lacking(self, images: int) -> int:
        """Return by how many images the common limit or this worker's share would be exceeded,
        whichever is less."""
        return min(super().lacking(images), int(self._own[0]) + images - self._share)


class Crew(Collector):
    """Holds, for each worker, whether it listens, its connections, replacements and lost
    threads."""

    def __init__(self, memory: Memory, workers: int) -> None:
        rows = memory.rows(4, workers)
        self.listening, self.connections, self.replaced, self.lost_threads = rows

    def has_most(self, worker: int) -> bool:
        """Return whether this worker has more connections than another that listens."""
        own = self.connections[worker]
        others = zip(self.listening, self.connections, strict=True)
        return any(listens and connections < own for listens, connections in others)

    @override
    def collect(self) -> Iterable[Metric]:
        text = "Processes that accept connections."
        yield GaugeMetricFamily("convoy_workers", text, sum(self.listening))
        text = "Processes that ended, and another took the place of."
        yield CounterMetricFamily("convoy_workers_replaced", text, sum(self.replaced))
