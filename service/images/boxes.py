"""Iterates over the boxes of MP4, QuickTime, AVIF and HEIC files. A box has a size, a kind and a
payload (ISO/IEC 14496-12, 4.2)."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from service.errors import ImageError


class Box(NamedTuple):
    """Holds one box. `start` is the offset of the box in the bytes that were searched."""

    kind: bytes
    start: int
    payload: memoryview


class Faults(Protocol):
    """The interface of objects that create the errors for one kind of file."""

    def truncated(self) -> ImageError:
        """Return the error for a file that ends too early."""

    def broken(self, what: str) -> ImageError:
        """Return the error for a file that contradicts its format."""


def boxes(view: memoryview, count: Callable[[], None], faults: Faults) -> Iterator[Box]:
    """Yield each box in a file, or in the payload of a box. `count` is called before each box, and
    raises ImageError if a file has too many boxes.

    If a box is longer than its file or shorter than its header, an error from `faults` is raised.
    """
    start = 0
    while start + 8 <= len(view):
        count()
        size, kind = struct.unpack_from(">I4s", view, start)
        begin = start + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", view, begin)
            begin += 8
        end = start + size if size else len(view)
        if end > len(view):
            raise faults.truncated()
        if end < begin:
            raise faults.broken("a box is shorter than its header")
        yield Box(kind, start, view[begin:end])
        start = end
