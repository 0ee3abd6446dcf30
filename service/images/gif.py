"""Reads the headers of GIF files: a screen descriptor, and then blocks, some of which are images
(GIF specification, version 89a)."""

import struct
from typing import NamedTuple

from service.images.file import ImageFile, ImageFormat, Weight

_FORMAT = ImageFormat.GIF

_SCREEN_BYTES, _IMAGE_BYTES = 13, 10
_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_CONTROL = 0xF9
_HAS_TABLE, _TABLE_BITS = 0x80, 0x07

# The cost of a first frame, which Pillow reads as indices of a palette; a grey frame takes a fifth.
_OPAQUE, _TRANSPARENT = Weight(0.0, 5.1, 15), Weight(0.0, 9.2, 23)

# Encoders fill every sub-block except the last of each block; a sub-block has up to 255 bytes.
_SUB_BLOCKS, _BYTES_A_SUB_BLOCK = 4096, 64

# The most pixels per byte: a code of 12 bits stands for at most 4096 pixels.
_MOST_PIXELS = 4096 * 8 // 12


class Gif(NamedTuple):
    """Holds the facts that were read from the blocks of a GIF."""

    width: int
    height: int
    frames: int
    transparent: bool  # the first frame may be
    end: int  # of the first frame, in the file


def parse_gif(data: bytes) -> tuple[int, int, int]:
    """Return a GIF's width, height and number of frames. Raises ImageError if the file is truncated
    or broken."""
    gif = _read(data)
    return gif.width, gif.height, gif.frames


def parse_gif_image(data: bytes) -> ImageFile:
    """Return a GIF's size and the cost of decoding its first frame. The parts of the returned
    `ImageFile` contain only that frame. Raises ImageError if the file is truncated or broken."""
    gif = _read(data)
    weight = _TRANSPARENT if gif.transparent else _OPAQUE
    parts = [memoryview(data)[: gif.end], memoryview(bytes([_TRAILER]))]
    return ImageFile(
        *(_FORMAT, gif.width, gif.height, 1, 1, weight),
        *(0, 0, parts),  # each frame's bytes are enough for its pixels
    )


def _read(data: bytes) -> Gif:
    if len(data) < _SCREEN_BYTES:
        raise _FORMAT.truncated()
    width, height, packed = struct.unpack_from("<HHB", data, 6)
    _FORMAT.check_size(width, height)
    frames, left = 0, _SUB_BLOCKS + len(data) // _BYTES_A_SUB_BLOCK
    transparent, end = False, 0
    position = _SCREEN_BYTES + _table_bytes(packed)
    try:
        while (kind := data[position]) != _TRAILER:
            if kind == _IMAGE:
                x, y, w, h, packed = struct.unpack_from("<HHHHB", data, position + 1)
                if x + w > width or y + h > height or not (w and h):
                    raise _FORMAT.broken("a frame lies outside the image")
                frames += 1
                position += _IMAGE_BYTES + _table_bytes(packed) + 1
            elif kind == _EXTENSION:
                control = data[position + 1] == _CONTROL and not frames
                transparent = transparent or (control and bool(data[position + 3] & 1))
                position += 2
            else:
                raise _FORMAT.broken(f"it has a block of unknown type {kind}")
            coded_bytes = 0
            while size := data[position]:
                position += 1 + size
                coded_bytes += size
                left -= 1
            position += 1
            if kind == _IMAGE:
                _FORMAT.check_density(w, h, coded_bytes, w * h // _MOST_PIXELS)
                end = end or position
            if left < 0:
                raise _FORMAT.broken("it has more sub-blocks than an image of its size needs")
    except (IndexError, struct.error):
        raise _FORMAT.truncated() from None
    if not frames:
        raise _FORMAT.broken("it has no frames")
    return Gif(width, height, frames, transparent, end)


def _table_bytes(packed: int) -> int:
    """Return the number of bytes in a colour table, or 0 if there is none."""
    return 3 * 2 ** ((packed & _TABLE_BITS) + 1) if packed & _HAS_TABLE else 0
