"""Reads the headers of WebP files: RIFF, size, WEBP, and then chunks of type, length and payload,
padded to an even length (RFC 9649)."""

import struct
from collections.abc import Iterator

from service.images.file import ImageFile, ImageFormat, Weight, exif_orientation

_FORMAT = ImageFormat.WEBP
_EXIF_PREFIX = b"Exif\0\0"

# The most pixels per byte of a lossless image (VP8L), and of other images. At its highest effort,
# libwebp codes 25 million pixels of one colour in 1020 bytes, which is 24,500 pixels per byte; a 4K
# image with one ellipse has 3,700, with twenty ellipses 680. A lossy image of one colour has 560 at
# any quality. The format itself allows any size in 38 bytes.
_MOST_PIXELS = {b"VP8L": 2**15, b"VP8 ": 2**11}

# The bytes of a frame's position, size and duration at the beginning of its chunk.
_FRAME_BYTES = 16

# Pillow reads every WebP as an animation: two canvases of 4 bytes per pixel, a copy, and the image.
_WEIGHT = Weight(held_bytes=0.0, drawn_bytes=17.3, ns=50)


def parse_webp(data: bytes, *, animated: bool = False) -> ImageFile:
    """Return a WebP's size, orientation and decoding cost.

    Raises ImageError if the file is truncated or broken, and UnsupportedMediaTypeError for an
    animation if `animated` is False.
    """
    length = 8 + int.from_bytes(data[4:8], "little")
    if len(data) < max(12, length):
        raise _FORMAT.truncated()
    view = memoryview(data)[:length]
    width = height = orientation = coded_bytes = frames = 0
    densest = max(_MOST_PIXELS.values())
    for number, (kind, payload) in enumerate(_chunks(view, len(data))):
        is_animated = kind == b"VP8X" and payload and payload[0] & 0x02
        if (is_animated or kind in (b"ANIM", b"ANMF")) and not animated:
            raise _FORMAT.animated()
        if kind == b"ANMF":
            frames += 1
            _check_frame(payload)
        if number == 0:  # VP8X, VP8 or VP8L, each of which has the size of the canvas
            width, height = _size(kind, payload)
        elif kind == b"EXIF" and not orientation:
            orientation = exif_orientation(bytes(payload).removeprefix(_EXIF_PREFIX))
        if kind in _MOST_PIXELS:
            coded_bytes += len(payload)
            densest = min(densest, _MOST_PIXELS[kind])
    _FORMAT.check_size(width, height)
    least_bytes = width * height // densest
    if frames:  # the frames' images are inside their chunks, and were checked there
        coded_bytes = least_bytes = 0
    return ImageFile(
        *(_FORMAT, width, height, orientation or 1, 1, _WEIGHT, coded_bytes, least_bytes, [view]),
        frames=max(1, frames),
    )


def _check_frame(payload: memoryview) -> None:
    """Raise ImageError if a frame of an animation has more pixels than its bytes can hold."""
    width, height = (int.from_bytes(payload[at : at + 3], "little") + 1 for at in (6, 9))
    coded_bytes, densest = 0, max(_MOST_PIXELS.values())
    for kind, part in _chunks(payload, len(payload), _FRAME_BYTES):
        if kind in _MOST_PIXELS:
            coded_bytes += len(part)
            densest = min(densest, _MOST_PIXELS[kind])
    _FORMAT.check_density(width, height, coded_bytes, width * height // densest)


def _chunks(
    view: memoryview, file_bytes: int, position: int = 12
) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and payload of each chunk of a RIFF file, from the offset `position` on."""
    for _ in _FORMAT.segments(file_bytes):
        if position + 8 > len(view):
            return
        kind, size = struct.unpack_from("<4sI", view, position)
        end = position + 8 + size
        if end > len(view):
            raise _FORMAT.truncated()
        yield kind, view[position + 8 : end]
        position = end + (size & 1)
    raise _FORMAT.crowded(file_bytes)


def _size(kind: bytes, payload: memoryview) -> tuple[int, int]:
    if kind == b"VP8X" and len(payload) >= 10:
        size = int.from_bytes(payload[4:10], "little")
        return (size & 0xFFFFFF) + 1, (size >> 24) + 1
    if kind == b"VP8 " and bytes(payload[3:6]) == b"\x9d\x01\x2a" and len(payload) >= 10:
        width, height = struct.unpack_from("<HH", payload, 6)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(payload) >= 5 and payload[0] == 0x2F:
        bits = int.from_bytes(payload[1:5], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    raise _FORMAT.broken("its header is invalid")
