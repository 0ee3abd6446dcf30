"""Describes images that are decoded but not resized, and their layout in memory for a device."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.image.place import (
    CHANNELS,
    ENTRY_BYTES,
    Bytes,
    DeferredImage,
    Kind,
    aligned,
    entry,
    read_entry,
    used_bytes,
)
from kernels.image.taps import WEIGHT_BITS, Taps, most_taps, taps_of
from kernels.problems.interpolation import Interpolation

MOST_PIXELS = 2**20
"""The most pixels of a decoded image, with one or three bytes each."""

MIDDLE_BYTES = 3 * MOST_PIXELS
"""The most bytes that the pass along the first axis writes for one image."""

_TAPS_BYTES = 2**18  # of both axes

JPEG_BYTES = 2304
"""Bytes for the description of a JPEG file (jpeg.py)."""

PLACE_BYTES = ENTRY_BYTES + _TAPS_BYTES + JPEG_BYTES + 3 * MOST_PIXELS
"""The number of bytes that a batch reserves for one image of any kind, a multiple of 16."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Describes how to resize, crop, mirror, transpose and paste a decoded image. x and y are the
    axes of the stored image, before it is transposed.

    The image's `box` is resized to `size`, and `crop` is cut out of the result. This crop is
    mirrored by `x_reversed` and `y_reversed`, then transposed, and pasted into the middle of the
    `frame`.
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
        """Return whether an image of this size fits into the memory that a batch reserves for one
        image. The taps of the resize, and the result of its first pass, must fit too."""
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
            and len(self.channels) <= CHANNELS
        )


class Crop:
    """Holds the part of a decoded image that the resize reads, and the taps of both axes. A tap is
    the position of an input pixel and its weight."""

    def __init__(self, size: tuple[int, int], channels: int, resize: Resize) -> None:
        """Compute the crop of an image with this size (width, height) and 1 or 3 channels. Raises
        ValueError if the image does not fit into the memory that a batch reserves for one image."""
        width, height = size
        if not resize.fits(width, height, channels):
            raise ValueError(
                f"an image of {height}×{width}×{channels} is too large for its memory in a batch"
            )
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
        """Return the bytes that precede the image's data in a batch. These are the `Entry` of
        kernels/src/place.cuh, the tables of the taps of both axes, and `jpeg`, the description of a
        JPEG file. `nbytes` is the size of the data that follow: pixels, or the scan of a JPEG
        file."""
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
        jpeg_at = aligned(ENTRY_BYTES + sum(map(len, tables)))
        data_at = aligned(jpeg_at + len(jpeg))
        head = entry(
            kind=Kind.JPEG if jpeg else Kind.DECODED,
            bytes=aligned(data_at + nbytes),
            data=data_at,
            jpeg=jpeg_at if jpeg else 0,
            middle_bytes=middle_bytes,
            inner=inner,
            outputs=first.outputs,
            inputs=inputs,
            taps=(first.count, second.count),
            table=(ENTRY_BYTES, ENTRY_BYTES + len(tables[0])),
            second=y,
            kept=x,
            kept_stride=kept_stride,
            tap_stride=tap_stride,
            corner=[(o - i) // 2 for o, i in zip(self.resize.frame, inside, strict=True)],
            size=inside,
            channel=_filled(self.channels),
            paper=_filled(self.resize.paper),
        )
        whole = b"".join([head.tobytes(), *tables]).ljust(jpeg_at, b"\0") + jpeg
        return np.frombuffer(whole.ljust(data_at, b"\0"), np.uint8)


class DecodedImage(DeferredImage):
    """Holds a decoded image, and the description of its resize.

    Conversion to a NumPy array resizes the image on the CPU. A device computes the same pixels from
    the bytes that `write` adds to a batch.
    """

    kind = Kind.DECODED

    def __init__(self, pixels: Bytes, resize: Resize) -> None:
        """Describe how to resize pixels H×W×C, C = 1 or 3. Raises ValueError if they do not fit
        into the memory that a batch reserves for one image."""
        height, width, channels = pixels.shape
        crop = Crop((width, height), channels, resize)
        self.resize = resize
        self.shape = resize.shape
        self.pixels = pixels[crop.rows, crop.columns]  # those that are used
        # What `write` begins with, made here since an engine's thread has less time.
        self._head = crop.head(self.pixels.nbytes)

    def write(self, place: Bytes) -> None:
        """Write the image's entry (`Entry` of place.cuh), taps and pixels to `place`, its memory in
        a batch."""
        head = self._head
        end = len(head) + self.pixels.nbytes
        place[: len(head)] = head
        place[len(head) : end].reshape(self.pixels.shape)[...] = self.pixels

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the resized pixels."""
        place = np.empty(aligned(len(self._head) + self.pixels.nbytes), np.uint8)
        self.write(place)
        return WrittenImage(place, self.shape).__array__(dtype)


class WrittenImage(DeferredImage):
    """Holds the bytes of one image in a batch, as another DeferredImage's `write` method wrote
    them."""

    def __init__(self, place: Bytes, shape: tuple[int, ...]) -> None:
        """Keep the image's bytes in a batch, and the shape of the resized pixels."""
        self._place, self.shape = place, shape
        (kind,) = read_entry(place)["kind"]
        self.kind = Kind(kind)

    def write(self, place: Bytes) -> None:
        """Copy the image's bytes to `place`, its memory in another batch."""
        used = used_bytes(self._place)
        place[:used] = self._place[:used]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the resized pixels, computed as in resize.cu. For a JPEG file return black pixels,
        because only a device can decode it."""
        if self.kind is Kind.JPEG:
            return np.zeros(self.shape, dtype or self.dtype)
        members = read_entry(self._place)
        (inner,), (outputs,), (inputs,) = (members[name] for name in ("inner", "outputs", "inputs"))
        (begin,), (middle_bytes,) = members["data"], members["middle_bytes"]
        first, second = self._tables(members)
        lines = middle_bytes // (inner * outputs)
        source = self._place[begin : begin + lines * inputs * inner].reshape(lines, inputs, inner)
        middle = _resampled(first, lambda tap: source[:, first[:, 0] + tap]).ravel()
        # By x and y of the image in the frame: its place on both axes, of which one is resampled.
        right, down = np.arange(members["size"][0]), np.arange(members["size"][1])[:, None]
        output, kept = (
            base + right * by_x + down * by_y
            for base, by_x, by_y in (members["second"], members["kept"])
        )
        rows, channels = second[output], members["channel"][: self.shape[2]]
        places = kept * members["kept_stride"] + rows[..., 0] * members["tap_stride"]
        beside = places[..., None] + channels
        image = _resampled(rows, lambda tap: middle[beside + tap * members["tap_stride"]])
        framed = np.empty(self.shape, np.uint8)
        framed[...] = members["paper"][: self.shape[2]]
        left, top = members["corner"]
        framed[top : top + len(down), left : left + len(right)] = image
        return framed if dtype is None else framed.astype(dtype, copy=False)

    def _tables(self, members: Mapping[str, NDArray[np.int32]]) -> Iterator[NDArray[np.int32]]:
        """Yield the tables of taps of both axes. A table has one row per output pixel: the index of
        the first input pixel, and the weights of the input pixels."""
        ends = [*members["table"], *members["data"]]
        for (begin, end), taps in zip(pairwise(ends), members["taps"], strict=True):
            row = 4 * (1 + taps)
            table = self._place[begin : begin + (end - begin) // row * row]
            yield table.view(np.int32).reshape(-1, 1 + taps)


def _is_down_first(width: int, height: int, size: tuple[int, int]) -> bool:
    """Return whether the first pass of the resize resamples the vertical axis. As in Pillow 13, the
    order with less work is chosen."""
    return height - size[1] > 2 * max(0, width - size[0])


def _cut(
    size: int,
    box: tuple[float, ...],
    outputs: int,
    crop: tuple[int, ...],
    interpolation: Interpolation,
) -> tuple[Taps, slice]:
    """Return the taps of one axis, and the slice of the axis that contains all pixels that the taps
    read. The positions of the taps count from the beginning of the slice."""
    taps = taps_of(size, (box[0], box[1]), outputs, (crop[0], crop[1]), interpolation)
    first, end = taps.span
    return Taps(taps.starts - first, taps.weights), slice(first, end)


def _table(taps: Taps) -> bytes:
    return np.concatenate([taps.starts[:, None], taps.weights], axis=1).astype(np.int32).tobytes()


def _mirrored(place: tuple[int, int, int], outputs: int) -> tuple[int, int, int]:
    base, by_x, by_y = place
    return outputs - 1 - base, -by_x, -by_y


def _filled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * (CHANNELS - len(numbers))


def _resampled(table: NDArray[np.int32], inputs: Callable[[int], Bytes]) -> Bytes:
    """Return the output pixels of one pass of the resize, rounded to bytes. Each output pixel is a
    weighted sum of input pixels."""
    total: Any = 1 << (WEIGHT_BITS - 1)
    for tap in range(table.shape[-1] - 1):
        total = total + table[..., 1 + tap, None] * inputs(tap)
    image: Bytes = np.clip(total >> WEIGHT_BITS, 0, 255).astype(np.uint8)
    return image
