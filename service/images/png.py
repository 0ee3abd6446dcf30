"""PNG headers: a signature, then chunks length type payload crc (PNG specification section 5)."""

import itertools
import struct
import zlib
from collections.abc import Iterator, Sequence

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

_FORMAT = ImageFormat.PNG
_SIGNATURE_LENGTH = 8
_GREY, _RGB, _INDEXED, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_SAMPLES = {_GREY: 1, _RGB: 3, _INDEXED: 1, _GREY_ALPHA: 2, _RGBA: 4}
_KEPT = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})

# deflate cannot do better (zlib's technical details: 1032 to 1).
_BEST_RATIO = 1032

# Bytes and nanoseconds a pixel, by colour type, with transparency or without.
_WEIGHTS = {
    (_GREY, False): (5.3, 18),
    (_GREY, True): (9.2, 22),
    (_RGB, False): (4.4, 38),
    (_RGB, True): (12.3, 48),
    (_INDEXED, False): (5.5, 13),
    (_INDEXED, True): (9.3, 16),
    (_GREY_ALPHA, False): (12.2, 35),
    (_RGBA, False): (8.4, 54),
}
_WIDE_GREY = (8.1, 31)  # 16 bits, of which Pillow makes an image of its own
_WIDE_NS = 2  # times as long, for twice as many bytes


def parse_png(data: bytes) -> ImageFile:
    """A PNG's size, orientation and what decoding it takes.

    ImageError: truncated or broken. UnsupportedMediaTypeError: an animation. Checksums are left to
    `check_png`.
    """
    view = memoryview(data)
    kept = [view[:_SIGNATURE_LENGTH]]
    header: tuple[int, int, int, int] | None = None  # width, height, depth, colour
    has_palette = transparent = False
    orientation: int | None = None
    compressed = 0
    for kind, start, end in _chunks(data):
        payload = view[start + 8 : end - 4]
        if header is None and kind != b"IHDR":
            raise broken(_FORMAT, "it does not begin with its header")
        if kind == b"acTL" and int.from_bytes(payload[:4], "big") > 1:
            raise animated(_FORMAT)
        if kind == b"eXIf" and orientation is None:
            orientation = exif_orientation(payload)
        if kind not in _KEPT:
            continue
        if kind == b"IHDR":
            if header is not None or len(payload) != 13:
                raise broken(_FORMAT, "its header makes no sense")
            header = struct.unpack_from(">IIBB", payload)
        has_palette |= kind == b"PLTE"
        transparent |= kind == b"tRNS"
        if kind == b"IDAT":
            compressed += len(payload)
            if header is not None and header[3] == _INDEXED and not has_palette:
                raise broken(_FORMAT, "its palette is missing")
        # A transparent colour given in 16 bits names no colour of the 8 bits it is read in.
        if not (kind == b"tRNS" and header is not None and header[2] == 16):
            kept.append(view[start:end])
    width, height, depth, colour = header or (0, 0, 0, 0)
    check_size(_FORMAT, (width, height))
    if colour not in _SAMPLES or depth not in (1, 2, 4, 8, 16):
        raise broken(_FORMAT, "its header makes no sense")
    row = 1 + (width * _SAMPLES[colour] * depth + 7) // 8
    return ImageFile(
        *(_FORMAT, width, height, orientation or 1, 1),
        weight=_weight(colour, depth, transparent=transparent),
        coded_bytes=compressed,
        least_bytes=row * height // _BEST_RATIO,
        parts=kept,
    )


def check_png(parts: Sequence[memoryview]) -> None:
    """ImageError where a chunk's checksum is wrong; time proportional to the bytes."""
    for chunk in parts[1:]:
        if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big"):
            kind = bytes(chunk[4:8]).decode()
            raise broken(_FORMAT, f"the checksum of its {kind} chunk is wrong")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of every chunk, IEND last."""
    position = _SIGNATURE_LENGTH
    for count in itertools.count():
        check_segments(count, data, _FORMAT)
        kind = data[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise truncated(_FORMAT)
        yield kind, position, end
        if kind == b"IEND":
            return
        position = end


def _weight(colour: int, depth: int, *, transparent: bool) -> Weight:
    wide = depth == 16
    if wide and colour == _GREY:
        drawn, ns = _WIDE_GREY
    else:
        # Of a colour type that has its own transparency another is broken, and not looked at.
        drawn, ns = _WEIGHTS.get((colour, transparent and not wide), _WEIGHTS[_RGBA, False])
        ns *= _WIDE_NS if wide else 1
    return Weight(0.0, drawn, ns)
