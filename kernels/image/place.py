"""Writes the images of a batch to memory, in the layout of kernels/src/place.cuh. Each image has a
place of its own and may be of any kind.

A place begins with an entry, which describes the image. The end of a place stays unused if its
image needs less than the whole place:

    Entry │ pixels of the network's size, or a tensor
    Entry │ taps of the first axis │ of the second │ pixels of another size
    Entry │ taps of the first axis │ of the second │ Jpeg, tables │ scan of a JPEG file
"""

from collections.abc import Iterable
from enum import IntEnum, unique
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import SOURCE_ROOT
from kernels.device.launch import struct
from kernels.device.signature import fields

SOURCE = "place.cuh"

ENTRY_BYTES = 144
"""Bytes of an entry, including padding."""

_ALIGNED = 16

CHANNELS = 4
"""The most elements of an entry's arrays, which have one element per channel."""

Bytes = NDArray[np.uint8]


@unique
class Kind(IntEnum):
    """Lists the kinds of images. The numbers are the same as in place.cuh.

    A batch has a kind too. Its launches support images of this kind, and of all kinds that are
    listed before this kind.
    """

    PIXELS = 0  # of the network's size
    TENSOR = 1  # normalised already
    DECODED = 2  # pixels of another size
    JPEG = 3  # a file (jpeg.py)


class DeferredImage:
    """An image that is not an array of pixels yet. When NumPy converts it to an array, the array
    has the pixels that the image will have."""

    kind: Kind
    dtype = np.dtype(np.uint8)
    shape: tuple[int, ...]

    def write(self, place: Bytes) -> None:
        """Write the entry and the image's data to a place in a batch."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the pixels that the image will have."""
        raise NotImplementedError


PlacedImage = NDArray[np.uint8] | NDArray[np.float32] | DeferredImage
"""An image that a place may hold: pixels of the network's size, a tensor, or an image that will
become pixels."""

_KINDS = {np.dtype(np.uint8): Kind.PIXELS, np.dtype(np.float32): Kind.TENSOR}


def kind_of(image: PlacedImage) -> Kind:
    """Return an image's kind. Raises KeyError for an array of another type."""
    return image.kind if isinstance(image, DeferredImage) else _KINDS[image.dtype]


def kind_of_batch(images: Iterable[PlacedImage]) -> Kind:
    """Return the kind of a batch, which is the highest `Kind` of its images. If the batch is an
    array, its type determines the kind."""
    if isinstance(images, np.ndarray):
        return _KINDS[images.dtype]
    return max(map(kind_of, images))


def array_bytes(nbytes: int) -> int:
    """Return the size in bytes of a place for an array of `nbytes` bytes."""
    return aligned(ENTRY_BYTES + nbytes)


def aligned(nbytes: int) -> int:
    """Return `nbytes`, rounded up to a multiple of the 16 bytes that a thread copies at once."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def write(place: Bytes, image: PlacedImage) -> None:
    """Write an image and its entry to a place in a batch."""
    if isinstance(image, DeferredImage):
        image.write(place)
        return
    place[:ENTRY_BYTES] = _head(_KINDS[image.dtype], image.nbytes)
    there = place[ENTRY_BYTES : ENTRY_BYTES + image.nbytes]
    there.view(image.dtype).reshape(image.shape)[...] = image


@lru_cache(maxsize=16)
def _head(kind: Kind, nbytes: int) -> Bytes:
    """Return the entry for an array."""
    none = (0,) * CHANNELS
    return entry(
        kind=kind,
        bytes=array_bytes(nbytes),
        data=ENTRY_BYTES,
        jpeg=0,
        middle_bytes=0,
        inner=1,
        outputs=1,
        inputs=0,
        taps=none[:2],
        table=none[:2],
        second=none[:3],
        kept=none[:3],
        kept_stride=0,
        tap_stride=0,
        corner=none[:2],
        size=none[:2],
        channel=none,
        paper=none,
    )


def used_bytes(place: Bytes) -> int:
    """Return the number of bytes that the entry and the image of a place need."""
    return int(place[:ENTRY_BYTES].view(np.int32)[1])


def entry(**members: int | Iterable[int]) -> Bytes:
    """Return the bytes of place.cuh's Entry, padded. Raises TypeError if a member is missing."""
    packed = struct(SOURCE, "Entry", **members)
    return np.frombuffer(packed.ljust(ENTRY_BYTES, b"\0"), np.uint8)


def read_entry(place: Bytes) -> dict[str, NDArray[np.int32]]:
    """Return the members of a place's entry by name, as arrays. The array of a Divisor has only the
    number by which it divides."""
    numbers, at = place[:ENTRY_BYTES].view(np.int32), 0
    members: dict[str, NDArray[np.int32]] = {}
    for field in fields(SOURCE_ROOT / SOURCE, "Entry"):
        length = 3 if field.type == "Divisor" else field.length or 1
        members[field.name] = numbers[at : at + (field.length or 1)]
        at += length
    return members
