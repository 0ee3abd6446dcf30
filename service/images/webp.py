"""WebP headers: RIFF size WEBP, then chunks type length payload, padded to even (RFC 9649)."""

import itertools
import struct
from collections.abc import Iterator

from service.images.file import (
    ImageFile,
    ImageFormat,
    Weight,
    animated,
    broken,
    check_segments,
    check_size,
    exif_orientation,
    truncated,
)

_FORMAT = ImageFormat.WEBP
_EXIF_PREFIX = b"Exif\0\0"

# Pillow reads every WebP as an animation: two canvases of 4 bytes a pixel, a copy, and the image.
_WEIGHT = Weight(held_bytes=0.0, drawn_bytes=17.3, ns=50)


def parse_webp(data: bytes) -> ImageFile:
    """A WebP's size, orientation and what decoding it takes.

    ImageError: truncated or broken. UnsupportedMediaTypeError: an animation.
    """
    if len(data) < 12 or len(data) < 8 + int.from_bytes(data[4:8], "little"):
        raise truncated(_FORMAT)
    length = 8 + int.from_bytes(data[4:8], "little")
    view = memoryview(data)[:length]
    size: tuple[int, int] | None = None
    orientation: int | None = None
    for kind, start, end in _chunks(data, length):
        payload = view[start:end]
        is_animated = kind == b"VP8X" and len(payload) and payload[0] & 0x02
        if is_animated or kind in (b"ANIM", b"ANMF"):
            raise animated(_FORMAT)
        if size is None:  # the first chunk is VP8X, VP8 or VP8L and says how large the canvas is
            size = _size(kind, payload)
        elif kind == b"EXIF" and orientation is None:
            orientation = exif_orientation(bytes(payload).removeprefix(_EXIF_PREFIX))
    width, height = check_size(_FORMAT, size)
    return ImageFile(
        *(_FORMAT, width, height, orientation or 1, 1),
        weight=_WEIGHT,
        coded_bytes=length,
        least_bytes=0,  # a lossless one of one colour takes 38 bytes, whatever its size
        parts=[view],
    )


def _chunks(data: bytes, length: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of every chunk's payload."""
    position = 12
    for count in itertools.count():
        check_segments(count, data, _FORMAT)
        if position + 8 > length:
            return
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        end = position + 8 + size
        if end > length:
            raise truncated(_FORMAT)
        yield data[position : position + 4], position + 8, end
        position = end + (size & 1)


def _size(kind: bytes, payload: memoryview) -> tuple[int, int]:
    if kind == b"VP8X" and len(payload) >= 10:
        sides = payload[4:7], payload[7:10]
        width, height = (int.from_bytes(side, "little") + 1 for side in sides)
        return width, height
    if kind == b"VP8 " and bytes(payload[3:6]) == b"\x9d\x01\x2a" and len(payload) >= 10:
        width, height = struct.unpack_from("<HH", payload, 6)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(payload) >= 5 and payload[0] == 0x2F:
        bits = int.from_bytes(payload[1:5], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    raise broken(_FORMAT, "its header makes no sense")
