"""Reads the headers of JPEG files: the bytes FF D8, then segments (FF, marker, length, payload),
then scans (T.81 annex B)."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from service.errors import ImageError, UnsupportedMediaTypeError
from service.images.file import ImageFile, ImageFormat, Weight, exif_orientation

# Encoders write 6 scans of grey, 10 of colour and 18 of CMYK. Every scan visits the whole image,
# however few bytes it has; `ImageLimits` bounds scans times pixels.
MAX_SCANS = 100

# The most bytes that are searched at once.
_PIECE = 2**20

_FORMAT = ImageFormat.JPEG
_SOS, _EOI = 0xDA, 0xD9
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_FIRST_ARITHMETIC = 0xC9
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # not DHT, JPG, DAC
_APP0_JFIF, _APP1_EXIF, _APP14_ADOBE = 0xE0, 0xE1, 0xEE  # JFIF and Adobe name the colour space
_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}  # RSTn, SOI, stuffing and TEM: no length
_DROPPED = (frozenset(range(0xE0, 0xF0)) | {0xFE}) - {_APP0_JFIF, _APP14_ADOBE}
_EXIF_PREFIX = b"Exif\0\0"


class _Frame(NamedTuple):
    width: int
    height: int
    progressive: bool
    components: int
    samples: float  # per pixel, of all components: 3 of colour, 1.5 with chroma halved twice
    blocks: int  # 8×8 of all components, without those that only pad the last MCUs


def parse_jpeg(data: bytes) -> ImageFile:
    """Return a JPEG's size, orientation, scans and decoding cost.

    Raises ImageError if the file is truncated or broken, and UnsupportedMediaTypeError for
    arithmetic coding, for lossless and hierarchical files, and for samples that do not have 8 bits.
    """
    view = memoryview(data)
    parts = [view[:2]]
    frame: _Frame | None = None
    orientation = 0
    for marker, start, end in _segments(data):
        if marker in _SOF:
            if frame is not None:
                raise _FORMAT.broken("it has two frame headers")
            frame = _frame(marker, data[start + 4 : end])
        elif marker == _APP1_EXIF and not orientation:
            if data.startswith(_EXIF_PREFIX, start + 4):
                orientation = exif_orientation(view[start + 4 + len(_EXIF_PREFIX) : end])
        elif marker == _SOS and frame is not None:
            # If there are several scans, the decoder buffers the coefficients of all blocks.
            buffered = frame.progressive or data[start + 4] < frame.components
            scans = _scans(data, start) if buffered else 1
            # A code takes at least a bit. A block has a code for its first coefficient, and one
            # for its end unless other scans follow with the other coefficients.
            least_bytes = frame.blocks * (1 if buffered else 2) // 8
            coded_bytes = len(data) - end
            weight = _weight(frame, scans, coded_bytes, buffered=buffered)
            return ImageFile(
                *(_FORMAT, frame.width, frame.height, orientation or 1, scans),
                *(weight, coded_bytes, least_bytes, [*parts, view[start:]]),
            )
        if marker not in _DROPPED:
            parts.append(view[start:end])
    raise _FORMAT.broken("its width or height is 0 or missing")


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height in a JPEG's frame header, or None if the header is not found.
    Skips all checks that are not needed to find the header."""
    if not _FORMAT.begins(data):
        return None
    try:
        for marker, start, end in _segments(data):
            if marker in _SOF and end - start >= 9:
                height, width = struct.unpack_from(">HH", data, start + 5)
                return width, height
    except ImageError:  # `parse_jpeg` reports the error
        return None
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of every segment up to the first start of scan, inclusive."""
    position = 2
    for _ in _FORMAT.segments(len(data)):
        position = data.find(b"\xff", position)  # decoders skip stray bytes between segments
        if position < 0 or position + 4 > len(data):
            raise _FORMAT.truncated()
        marker = data[position + 1]
        if marker == 0xFF:  # padding
            position += 1
        elif marker in _STANDALONE:
            position += 2
        elif marker == _EOI:
            raise _FORMAT.broken("it ends before the first pixel")
        else:
            end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
            if end > len(data):
                raise _FORMAT.truncated()
            if end < position + (5 if marker == _SOS else 4):
                raise _FORMAT.broken("a segment has an invalid length")
            yield marker, position, end
            if marker == _SOS:
                return
            position = end
    raise _FORMAT.crowded(len(data))


def _scans(data: bytes, start: int) -> int:
    """Return how many scans begin at or after the offset `start`. Raises ImageError if there are
    more than MAX_SCANS."""
    mark = bytes([0xFF, _SOS])
    scans = 0
    for piece in range(start, len(data), _PIECE):  # a search holds the interpreter's lock
        scans += data.count(mark, piece, piece + _PIECE + 1)
        if scans > MAX_SCANS:
            raise _FORMAT.broken(f"it has more than {MAX_SCANS} scans")
    return scans


@lru_cache(maxsize=512)  # the images of a client have few sizes, mostly
def _frame(marker: int, payload: bytes) -> _Frame:
    if marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE):
        arithmetic = marker >= _FIRST_ARITHMETIC
        kind = "with arithmetic coding" if arithmetic else "lossless or hierarchical"
        raise UnsupportedMediaTypeError(
            f"this is a JPEG of an unsupported kind ({kind}); save it as a baseline or progressive"
            " JPEG"
        )
    if len(payload) < 6:
        raise _FORMAT.broken("its frame header is too short")
    precision, height, width, count = struct.unpack_from(">BHHB", payload)
    if precision != 8:
        raise UnsupportedMediaTypeError(
            f"this JPEG has {precision} bits per sample; save it with 8 bits"
        )
    _FORMAT.check_size(width, height)
    # (horizontal, vertical) sampling factors of each component
    factors = [divmod(byte, 16) for byte in payload[7 : 6 + 3 * count : 3]]
    valid = all(1 <= factor <= 4 for pair in factors for factor in pair)
    if not valid or not 1 <= len(factors) == count <= 4:
        raise _FORMAT.broken("its frame header is invalid")
    if count == 1:  # the factors of a single component have no meaning
        factors = [(1, 1)]
    across, down = (max(column) for column in zip(*factors, strict=True))
    samples = sum(h * v for h, v in factors) / (across * down)
    blocks = sum(_blocks(width * h, across) * _blocks(height * v, down) for h, v in factors)
    return _Frame(width, height, marker == _PROGRESSIVE, count, samples, blocks)


def _blocks(samples: int, divisor: int) -> int:
    """Return how many blocks of 8 samples cover `samples / divisor` samples. Both divisions round
    up."""
    return ceil(ceil(samples / divisor) / 8)


def _weight(frame: _Frame, scans: int, coded_bytes: int, *, buffered: bool) -> Weight:
    # If there are several scans, coefficients take 2 bytes. Pixels take 4 bytes, or 1 if grey. CMYK
    # is copied to RGB, which takes 4 more bytes.
    drawn = {1: 1.3, 3: 4.3}.get(frame.components, 4.3 + 4)
    # Decoding codes takes most of the time of a dense file; long codes take no longer than short
    # ones.
    coded = coded_bytes / (frame.width * frame.height)
    if buffered:
        codes = min(coded, 0.65 * frame.samples)
        return Weight(2.1 * frame.samples, drawn, 1.2 * frame.samples + scans + 25 * codes)
    codes = min(coded, 0.85 * frame.samples)
    return Weight(0.0, drawn, 1 + 1.2 * frame.samples + 7.2 * codes)
