"""Writes the images of a batch to memory, in the layout of kernels/src/place.cuh. Each image has a
place, a part of this memory. All places have the same size, but images may be of different kinds.

A place begins with an entry, which describes the image. If an image is small, the end of its place
stays unused:

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

    A batch has a kind too. It may contain images of its own kind, and of the kinds with smaller
    numbers.
    """

    PIXELS = 0  # of the network's size
    TENSOR = 1  # normalised already
    DECODED = 2  # pixels of another size
    JPEG = 3  # a file (jpeg.py)


class DeferredImage:
    """An image whose pixels are computed later, by a device or by NumPy. Conversion to a NumPy
    array computes the pixels."""

    kind: Kind
    dtype = np.dtype(np.uint8)
    shape: tuple[int, ...]

    def write(self, place: Bytes) -> None:
        """Write the image's entry and data to `place`, its memory in a batch."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Compute the image's pixels, and return them."""
        raise NotImplementedError


PlacedImage = NDArray[np.uint8] | NDArray[np.float32] | DeferredImage
"""An image that a place may hold: pixels of the network's size, a tensor, or an image that will
become pixels."""

_KINDS = {np.dtype(np.uint8): Kind.PIXELS, np.dtype(np.float32): Kind.TENSOR}


def kind_of(image: PlacedImage) -> Kind:
    """Return an image's kind. Raises KeyError for an array that is neither uint8 nor float32."""
    return image.kind if isinstance(image, DeferredImage) else _KINDS[image.dtype]


def kind_of_batch(images: Iterable[PlacedImage]) -> Kind:
    """Return the highest `Kind` of a batch's images. If the batch is an array, its type determines
    the kind."""
    if isinstance(images, np.ndarray):
        return _KINDS[images.dtype]
    return max(map(kind_of, images))


def array_bytes(nbytes: int) -> int:
    """Return the bytes that an image needs in a batch: its entry, and an array of `nbytes`
    bytes."""
    return aligned(ENTRY_BYTES + nbytes)


def aligned(nbytes: int) -> int:
    """Return `nbytes`, rounded up to a multiple of the 16 bytes that a thread copies at once."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def write(place: Bytes, image: PlacedImage) -> None:
    """Write an image's entry and data to `place`, the image's memory in a batch."""
    if isinstance(image, DeferredImage):
        image.write(place)
        return
    place[:ENTRY_BYTES] = _head(_KINDS[image.dtype], image.nbytes)
    there = place[ENTRY_BYTES : ENTRY_BYTES + image.nbytes]
    there.view(image.dtype).reshape(image.shape)[...] = image


@lru_cache(maxsize=16)
def _head(kind: Kind, nbytes: int) -> Bytes:
    """Return the entry of an image that is an array of `nbytes` bytes."""
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
    """Return how many bytes of `place` the image and its entry use."""
    return int(place[:ENTRY_BYTES].view(np.int32)[1])


def entry(**members: int | Iterable[int]) -> Bytes:
    """Return the bytes of an `Entry` of place.cuh, padded. Raises TypeError if a member is
    missing."""
    packed = struct(SOURCE, "Entry", **members)
    return np.frombuffer(packed.ljust(ENTRY_BYTES, b"\0"), np.uint8)


def read_entry(place: Bytes) -> dict[str, NDArray[np.int32]]:
    """Return the members of the entry in `place` by name, as arrays. For a member of type Divisor,
    return only the divisor itself."""
    numbers, at = place[:ENTRY_BYTES].view(np.int32), 0
    members: dict[str, NDArray[np.int32]] = {}
    for field in fields(SOURCE_ROOT / SOURCE, "Entry"):
        length = 3 if field.type == "Divisor" else field.length or 1
        members[field.name] = numbers[at : at + (field.length or 1)]
        at += length
    return members
