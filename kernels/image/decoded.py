"""Describes images that are decoded but not resized, and lays them out for a device to read.

A place in a batch of images is `PLACE_BYTES` of memory that begin with an entry of
kernels/src/place.cuh, as long as its image needs:

    Entry │ taps of the first axis │ of the second │ pixels             a decoded image
    Entry │ taps of the first axis │ of the second │ Jpeg, tables │ scan   a JPEG file (jpeg.py)
    Entry │ pixels                                                      pixels of the network's size
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.launch import struct
from kernels.image.taps import WEIGHT_BITS, Taps, most_taps, taps_of
from kernels.problems.interpolation import Interpolation

SOURCE = "resize.cu"
_ENTRY = "place.cuh"

MOST_PIXELS = 2**20
"""Of a decoded image, whether three bytes each or one."""

MIDDLE_BYTES = 3 * MOST_PIXELS
"""The most that the first axis's pass makes of one."""

_ALIGNED = 16
_ENTRY_BYTES = 144
_TAPS_BYTES = 2**18  # of both axes

JPEG_BYTES = 2304
"""Of what describes a JPEG file (jpeg.py)."""

PLACE_BYTES = _ENTRY_BYTES + _TAPS_BYTES + JPEG_BYTES + 3 * MOST_PIXELS
"""Of a place; a multiple of 16."""

_CHANNELS = 4  # at most, of an entry's arrays

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Resize:
    """Says how to resize, crop, turn and paste a decoded image, whose x and y are as stored.

    `size` is what `box` of it becomes, and `crop` is cut out of that. That is mirrored by
    `x_reversed` and `y_reversed`, then transposed, and lies in the middle of the `frame`.
    """

    size: tuple[int, int]  # width, height
    box: tuple[float, float, float, float]  # left, top, right, bottom, in pixels
    crop: tuple[int, int, int, int]  # likewise, in resized pixels
    interpolation: Interpolation
    x_reversed: bool
    y_reversed: bool
    transposed: bool
    frame: tuple[int, int]  # width, height
    channels: tuple[int, ...]  # by channel of the result: the image's, if that has several
    paper: tuple[int, ...]  # the colour around the image, as the result's channels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of the result, H×W×C."""
        return self.frame[1], self.frame[0], len(self.channels)

    def fits(self, width: int, height: int, channels: int) -> bool:
        """Return whether an image of this size, its taps and the first pass's result fit the space
        of one image in a batch."""
        left, top, right, bottom = self.crop
        across, down = right - left, bottom - top  # outputs
        middle = down * width if _is_down_first(width, height, self.size) else height * across
        # An edge's float32 may lie further out, by less than a pixel.
        taps = across * (1 + most_taps(width + 1, self.size[0], self.interpolation)) + down * (
            1 + most_taps(height + 1, self.size[1], self.interpolation)
        )
        return (
            width * height <= MOST_PIXELS
            and middle * channels <= MIDDLE_BYTES
            and 4 * taps <= _TAPS_BYTES
            and len(self.channels) <= _CHANNELS
        )


class Crop:
    """Says which of an image's pixels are resized, and by which taps."""

    def __init__(self, size: tuple[int, int], channels: int, resize: Resize) -> None:
        """Take the image's width and height, and its channels, 1 or 3. Raises ValueError where a
        place has no room for it.
        """
        width, height = size
        if not resize.fits(width, height, channels):
            raise ValueError(f"a place has no room for {height}×{width}×{channels} pixels")
        self.resize = resize
        left, top, right, bottom = resize.box
        across = _cut(width, (left, right), resize.size[0], resize.crop[::2], resize.interpolation)
        down = _cut(height, (top, bottom), resize.size[1], resize.crop[1::2], resize.interpolation)
        (self.across, self.columns), (self.down, self.rows) = across, down
        self.down_first = _is_down_first(width, height, resize.size)
        self.channels = resize.channels if channels > 1 else (0,) * len(resize.channels)
        self.shape = (
            self.rows.stop - self.rows.start,
            self.columns.stop - self.columns.start,
            channels,
        )

    def head(self, nbytes: int, jpeg: bytes = b"") -> Bytes:
        """Return the entry up to the pixels, or up to a JPEG file's scan, which `jpeg` describes:
        kernels/src/place.cuh, `Entry`, both tables, and `jpeg`. `nbytes` follow it.
        """
        first, second = self.across, self.down
        height, width, channels = self.shape
        inner, inputs, kept_stride = channels, width, channels
        tap_stride = first.outputs * channels
        middle_bytes = height * first.outputs * channels
        # By upright x and y from the image's corner: the place on each stored axis.
        x, y = ((0, 0, 1), (0, 1, 0)) if self.resize.transposed else ((0, 1, 0), (0, 0, 1))
        x = _mirrored(x, first.outputs) if self.resize.x_reversed else x
        y = _mirrored(y, second.outputs) if self.resize.y_reversed else y
        inside = (first.outputs, second.outputs)[:: -1 if self.resize.transposed else 1]
        if self.down_first:
            first, second, x, y = second, first, y, x
            inner, inputs, kept_stride = width * channels, height, width * channels
            tap_stride = channels
            middle_bytes = first.outputs * width * channels
        tables = [_table(first), _table(second)]
        tables_end = _ENTRY_BYTES + sum(map(len, tables))
        jpeg_at = _aligned(tables_end)
        pixels_at = _aligned(jpeg_at + len(jpeg))
        entry = struct(
            _ENTRY,
            "Entry",
            bytes=_aligned(pixels_at + nbytes),
            pixels=pixels_at,
            resized=1,
            jpeg=jpeg_at if jpeg else 0,
            middle_bytes=middle_bytes,
            inner=inner,
            outputs=first.outputs,
            inputs=inputs,
            taps=(first.count, second.count),
            table=(_ENTRY_BYTES, _ENTRY_BYTES + len(tables[0])),
            second=y,
            kept=x,
            kept_stride=kept_stride,
            tap_stride=tap_stride,
            corner=[(o - i) // 2 for o, i in zip(self.resize.frame, inside, strict=True)],
            size=inside,
            channel=_filled(self.channels),
            paper=_filled(self.resize.paper),
        )
        head = b"".join([entry, *tables]).ljust(jpeg_at, b"\0") + jpeg
        return np.frombuffer(head.ljust(pixels_at, b"\0"), np.uint8)


class DecodedImage:
    """Holds a decoded image and how to resize it; NumPy sees it as the resized pixels.

    The array is computed here. A device computes the same from what `write` writes.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, pixels: Bytes, resize: Resize) -> None:
        """Take pixels H×W×C, C = 1 or 3. Raises ValueError where they exceed the space of an image
        in a batch."""
        height, width, channels = pixels.shape
        self._crop = Crop((width, height), channels, resize)
        self.resize = resize
        self.shape = resize.shape
        self.pixels = pixels[self._crop.rows, self._crop.columns]  # those that are used
        # What `write` begins with, made here since an engine's thread has less time.
        self._head = self._crop.head(self.pixels.nbytes)

    def write(self, place: Bytes) -> None:
        """Write the entry, the taps and the pixels to a place in a batch."""
        head = self._head
        end = len(head) + self.pixels.nbytes
        place[: len(head)] = head
        place[len(head) : end].reshape(self.pixels.shape)[...] = self.pixels

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the resized pixels."""
        crop = self._crop
        passes = [(1, crop.across), (0, crop.down)]
        image = self.pixels
        for axis, taps in passes[:: -1 if crop.down_first else 1]:
            image = _resampled(image, axis, taps)
        resize = self.resize
        image = image[:: -1 if resize.y_reversed else 1, :: -1 if resize.x_reversed else 1]
        image = (image.swapaxes(0, 1) if resize.transposed else image)[..., list(crop.channels)]
        framed = np.empty(self.shape, np.uint8)
        framed[...] = resize.paper
        top, left = ((o - i) // 2 for o, i in zip(self.shape[:2], image.shape[:2], strict=True))
        framed[top : top + image.shape[0], left : left + image.shape[1]] = image
        return framed if dtype is None else framed.astype(dtype, copy=False)


Placed = Bytes | DecodedImage
"""What a place may hold: pixels of the network's size, or an image to make them of."""


def write(place: Bytes, image: Placed) -> None:
    """Write an image, decoded or as pixels, to its place in a batch."""
    if isinstance(image, DecodedImage):
        image.write(place)
        return
    head = _head_of_pixels(image.nbytes)
    place[: len(head)] = head
    place[len(head) : len(head) + image.nbytes].reshape(image.shape)[...] = image


@lru_cache(maxsize=16)
def _head_of_pixels(nbytes: int) -> Bytes:
    none = (0,) * _CHANNELS
    entry = struct(
        _ENTRY,
        "Entry",
        bytes=_aligned(_ENTRY_BYTES + nbytes),
        pixels=_ENTRY_BYTES,
        resized=0,
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
    return np.frombuffer(entry, np.uint8)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _is_down_first(width: int, height: int, size: tuple[int, int]) -> bool:
    """Return whether rows are resampled before columns; Pillow 13 picks the order with less
    work."""
    return height - size[1] > 2 * max(0, width - size[0])


def _cut(
    size: int,
    box: tuple[float, ...],
    outputs: int,
    crop: tuple[int, ...],
    interpolation: Interpolation,
) -> tuple[Taps, slice]:
    """Return an axis's taps relative to the first pixel that is used, and the slice of used
    pixels."""
    taps = taps_of(size, (box[0], box[1]), outputs, (crop[0], crop[1]), interpolation)
    first, end = taps.span
    return Taps(taps.starts - first, taps.weights), slice(first, end)


def _table(taps: Taps) -> bytes:
    return np.concatenate([taps.starts[:, None], taps.weights], axis=1).astype(np.int32).tobytes()


def _mirrored(place: tuple[int, int, int], outputs: int) -> tuple[int, int, int]:
    base, by_x, by_y = place
    return outputs - 1 - base, -by_x, -by_y


def _filled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * (_CHANNELS - len(numbers))


def _resampled(image: Bytes, axis: int, taps: Taps) -> Bytes:
    """Return the result of one pass of the resize, rounded to bytes."""
    lines = np.moveaxis(image, axis, 0)
    total = np.full((taps.outputs, *lines.shape[1:]), 1 << (WEIGHT_BITS - 1), np.int32)
    for tap in range(taps.count):
        total += taps.weights[:, tap, None, None] * lines[taps.starts + tap]
    return np.moveaxis(np.clip(total >> WEIGHT_BITS, 0, 255).astype(np.uint8), 0, axis)
