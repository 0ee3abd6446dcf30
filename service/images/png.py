"""Reads the headers of PNG files: a signature, and then chunks of length, type, payload and CRC
(PNG specification, section 5)."""

import struct
import zlib
from collections.abc import Iterator, Sequence

from service.images.file import ImageFile, ImageFormat, Weight, exif_orientation

_FORMAT = ImageFormat.PNG
_SIGNATURE_LENGTH = 8
_GREY, _RGB, _INDEXED, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_KEPT = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})

# The best ratio that deflate reaches (zlib's technical details: 1032 to 1).
_BEST_RATIO = 1032

# For each colour type: the samples, and the bytes and nanoseconds per pixel, opaque and
# transparent. Pillow ignores the transparent colour of types with alpha.
_COLOURS = {
    _GREY: (1, (1.3, 18), (9.2, 22)),
    _RGB: (3, (4.4, 38), (12.3, 48)),
    _INDEXED: (1, (5.5, 13), (9.3, 16)),
    _GREY_ALPHA: (2, (12.2, 35), (12.2, 35)),
    _RGBA: (4, (8.4, 54), (8.4, 54)),
}
_BITS = (2.3, 18)  # black and white, which is copied to grey
_WIDE_GREY = (7.7, 31)  # 16 bits, which Pillow reads into an image mode of its own
_WIDE_NS = 2  # times as long, for twice as many bytes

# The most additional chunks of an animation: each frame, however small, has two chunks or more.
_OF_FRAMES = 4096


def parse_png(data: bytes, *, animated: bool = False) -> ImageFile:
    """Return a PNG's size, orientation and decoding cost. Does not verify checksums, which is the
    task of `check_png`.

    If `animated`, the file may be an animation, and the `parts` of the result then contain the
    whole file. Otherwise, an animation raises UnsupportedMediaTypeError. Raises ImageError if the
    file is truncated or broken.
    """
    view = memoryview(data)
    parts = [view[:_SIGNATURE_LENGTH]]
    seen: set[bytes] = set()
    width = height = depth = colour = orientation = coded_bytes = 0
    frames = 1
    rect: tuple[int, int] | None = None  # the size of the frame whose data follows
    rect_bytes = 0
    for kind, start, end in _chunks(data, _OF_FRAMES if animated else 0):
        payload = view[start + 8 : end - 4]
        if not seen and kind != b"IHDR":
            raise _FORMAT.broken("it does not begin with its header")
        if kind == b"acTL" and (count := int.from_bytes(payload[:4], "big")) > 1:
            if not animated:
                raise _FORMAT.animated()
            frames = count
        if kind == b"eXIf" and not orientation:
            orientation = exif_orientation(payload)
        if kind in (b"fcTL", b"IEND") and rect is not None and colour in _COLOURS:
            _check_frame(*rect, rect_bytes, colour, depth)
        if kind == b"fcTL" and frames > 1 and len(payload) >= 12:
            rect, rect_bytes = struct.unpack_from(">II", payload, 4), 0
        elif kind in (b"IDAT", b"fdAT"):
            rect_bytes += len(payload)
        if kind not in _KEPT:
            continue
        if kind == b"IHDR":
            if kind in seen or len(payload) != 13:
                raise _FORMAT.broken("its header is invalid")
            width, height, depth, colour = struct.unpack_from(">IIBB", payload)
        elif kind == b"IDAT":
            coded_bytes += len(payload)
            if colour == _INDEXED and b"PLTE" not in seen:
                raise _FORMAT.broken("its palette is missing")
        seen.add(kind)
        # Pillow reads 16-bit samples as 8-bit samples, for which a 16-bit transparent colour is
        # wrong.
        if kind != b"tRNS" or depth != 16:
            parts.append(view[start:end])
    _FORMAT.check_size(width, height)
    if colour not in _COLOURS or depth not in (1, 2, 4, 8, 16):
        raise _FORMAT.broken("its header is invalid")
    weight = _weight(colour, depth, transparent=b"tRNS" in seen)
    least_bytes = _least_bytes(width, height, colour, depth)
    return ImageFile(
        *(_FORMAT, width, height, orientation or 1, 1, weight, coded_bytes, least_bytes),
        parts if frames == 1 else [view],
        frames,
    )


def png_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height in a PNG's header without checking anything, or None for another
    format."""
    if len(data) < 24 or not _FORMAT.begins(data):
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def check_png(parts: Sequence[memoryview]) -> None:
    """Raise ImageError if a chunk's checksum is wrong. The time is proportional to the file's
    length."""
    for chunk in parts[1:]:
        if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big"):
            kind = bytes(chunk[4:8]).decode()
            raise _FORMAT.broken(f"the checksum of its {kind} chunk is wrong")


def _check_frame(width: int, height: int, coded_bytes: int, colour: int, depth: int) -> None:
    """Raise ImageError if a frame of an animation has more pixels than its bytes can hold."""
    least_bytes = _least_bytes(width, height, colour, depth)
    _FORMAT.check_density(width, height, coded_bytes, least_bytes)


def _least_bytes(width: int, height: int, colour: int, depth: int) -> int:
    """Return the fewest bytes that deflate needs to code this many pixels."""
    row_bytes = 1 + (width * _COLOURS[colour][0] * depth + 7) // 8
    return row_bytes * height // _BEST_RATIO


def _chunks(data: bytes, more: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, start, end) of every chunk. IEND comes last. `more` is how many chunks the file
    may have in addition to the chunks of a still image."""
    position = _SIGNATURE_LENGTH
    for _ in _FORMAT.segments(len(data), more):
        kind = data[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise _FORMAT.truncated()
        yield kind, position, end
        if kind == b"IEND":
            return
        position = end
    raise _FORMAT.crowded(len(data), more)


def _weight(colour: int, depth: int, *, transparent: bool) -> Weight:
    wide = depth == 16
    if wide and colour == _GREY:
        return Weight(0.0, *_WIDE_GREY)
    if depth == 1 and colour == _GREY and not transparent:
        return Weight(0.0, *_BITS)
    _, opaque, clear = _COLOURS[colour]
    drawn, ns = clear if transparent and not wide else opaque
    return Weight(0.0, drawn, ns * _WIDE_NS if wide else ns)
