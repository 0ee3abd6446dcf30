"""JPEG headers: FF D8, then segments FF marker length payload, then scans (ITU-T T.81 annex B)."""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from service.errors import UnsupportedMediaTypeError
from service.images.file import (
    ImageFile,
    ImageFormat,
    Weight,
    broken,
    check_segments,
    check_size,
    exif_orientation,
    truncated,
)

# Encoders write 6 scans of grey, 10 of colour and 18 of CMYK. Every scan visits the whole image,
# however few bytes it has; `ImageLimits` bounds scans times pixels.
MAX_SCANS = 100

_FORMAT = ImageFormat.JPEG
_SOS, _EOI = 0xDA, 0xD9
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # not DHT, JPG, DAC
_ARITHMETIC = frozenset(range(0xC9, 0xD0))
_APP0_JFIF, _APP1_EXIF, _APP14_ADOBE = 0xE0, 0xE1, 0xEE  # JFIF and Adobe say which colour space
_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}  # RSTn, SOI, stuffing and TEM: no length
_DROPPED = (frozenset(range(0xE0, 0xF0)) | {0xFE}) - {_APP0_JFIF, _APP14_ADOBE}
_EXIF_PREFIX = b"Exif\0\0"


class _Component(NamedTuple):
    horizontal: int  # sampling factors, 1..4
    vertical: int


@dataclass(frozen=True, slots=True)
class _Frame:
    width: int
    height: int
    progressive: bool
    components: tuple[_Component, ...]

    @property
    def samples(self) -> float:
        """Samples a pixel, of all components; 3 of colour, 1.5 where its chroma is halved twice."""
        across, down = self._most
        return sum(c.horizontal * c.vertical for c in self.components) / (across * down)

    @property
    def blocks(self) -> int:
        """8×8 blocks of all components, without those that only fill up the last MCUs."""
        across, down = self._most
        return sum(
            _blocks(self.width * c.horizontal, across) * _blocks(self.height * c.vertical, down)
            for c in self.components
        )

    @property
    def _most(self) -> _Component:
        return _Component(
            max(c.horizontal for c in self.components), max(c.vertical for c in self.components)
        )


def parse_jpeg(data: bytes) -> ImageFile:
    """A JPEG's size, orientation, scans and what decoding it takes.

    ImageError: truncated or broken. UnsupportedMediaTypeError: arithmetic coding, lossless,
    hierarchical or 12-bit.
    """
    view = memoryview(data)
    kept = [view[:2]]
    frame: _Frame | None = None
    orientation: int | None = None
    for marker, start, end in _segments(data):
        if marker in _SOF:
            if frame is not None:
                raise broken(_FORMAT, "it has two frame headers")
            frame = _frame(marker, data[start + 4 : end])
        elif marker == _APP1_EXIF and orientation is None:
            if data.startswith(_EXIF_PREFIX, start + 4):
                orientation = exif_orientation(view[start + 4 + len(_EXIF_PREFIX) : end])
        elif marker == _SOS:
            if frame is None:
                break  # refused below: it does not say how large it is
            buffered = frame.progressive or data[start + 4] < len(frame.components)
            scans = data.count(bytes([0xFF, _SOS]), start) if buffered else 1
            if scans > MAX_SCANS:
                raise broken(_FORMAT, f"more than {MAX_SCANS} scans")
            kept.append(view[start:])
            return ImageFile(
                *(_FORMAT, frame.width, frame.height, orientation or 1, scans),
                weight=_weight(frame, scans, buffered=buffered),
                coded_bytes=len(data) - end,
                least_bytes=_least_bytes(frame, buffered=buffered),
                parts=kept,
            )
        if marker not in _DROPPED:
            kept.append(view[start:end])
    raise broken(_FORMAT, "it does not say how large it is")


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of every segment up to the first start of scan, which ends it."""
    position = 2
    for count in itertools.count():
        check_segments(count, data, _FORMAT)
        position = data.find(b"\xff", position)  # decoders skip stray bytes between segments
        if position < 0 or position + 4 > len(data):
            raise truncated(_FORMAT)
        marker = data[position + 1]
        if marker == 0xFF:  # padding
            position += 1
        elif marker in _STANDALONE:
            position += 2
        elif marker == _EOI:
            raise broken(_FORMAT, "it ends before any pixel")
        else:
            end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
            if end > len(data):
                raise truncated(_FORMAT)
            if end < position + (5 if marker == _SOS else 4):
                raise broken(_FORMAT, "a segment has no length")
            yield marker, position, end
            if marker == _SOS:
                return
            position = end


def _frame(marker: int, payload: bytes) -> _Frame:
    if marker in _ARITHMETIC or marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE):
        kind = "with arithmetic coding" if marker in _ARITHMETIC else "lossless or hierarchical"
        raise UnsupportedMediaTypeError(
            f"this is a JPEG of a rare kind ({kind}); save it as a baseline or progressive JPEG"
        )
    if len(payload) < 6:
        raise broken(_FORMAT, "its frame header is too short")
    precision, height, width, count = struct.unpack_from(">BHHB", payload)
    if precision != 8:
        raise UnsupportedMediaTypeError(
            f"this is a JPEG of {precision} bits a sample; save it with 8"
        )
    width, height = check_size(_FORMAT, (width, height))
    factors = payload[7 : 6 + 3 * count : 3]
    components = tuple(_Component(byte >> 4, byte & 15) for byte in factors)
    if not 1 <= len(components) == count <= 4 or not all(
        1 <= factor <= 4 for component in components for factor in component
    ):
        raise broken(_FORMAT, "its frame header makes no sense")
    if count == 1:  # whose factors mean nothing
        components = (_Component(1, 1),)
    return _Frame(width, height, marker == _PROGRESSIVE, components)


def _least_bytes(frame: _Frame, *, buffered: bool) -> int:
    """A code takes a bit at least, and a block a code for its first coefficient.

    One more for the end of the block, unless other scans follow with the other coefficients.
    """
    return frame.blocks * (1 if buffered else 2) // 8


def _weight(frame: _Frame, scans: int, *, buffered: bool) -> Weight:
    """Coefficients of 2 bytes where there are several scans; pixels of 4, or of 1 if grey.

    What is not RGB is copied to it: once more 4 bytes.
    """
    drawn = {1: 1.3 + 4, 3: 4.3}.get(len(frame.components), 4.3 + 4)
    if buffered:
        return Weight(2.1 * frame.samples, drawn, 4 * frame.samples + scans)
    return Weight(0.0, drawn, 1 + 1.8 * frame.samples)


def _blocks(samples: int, of: int) -> int:
    """How many 8-sample blocks `samples / of` samples take, rounded up each time."""
    return ceil(ceil(samples / of) / 8)
