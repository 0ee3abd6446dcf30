"""Image files as bytes: which format, how large, which way up, before a decoder sees any of it.

JPEG, PNG and WebP are read here just far enough to hold the limits. What the decoder gets then
carries the picture and nothing else: comments, colour profiles, thumbnails and EXIF are left out,
so no time or memory is spent on what nobody asked for, and a hostile file finds less to attack.

Formats: ITU-T T.81 annex B (JPEG), the PNG specification (third edition) sections 5 and 11,
RFC 9649 (WebP), and CIPA DC-008 (EXIF) for the orientation.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique

from service.errors import ImageError, UnsupportedMediaTypeError

# Generous next to real files, which have tens of segments; without a bound a 20 MB file could hold
# millions of empty ones and keep an interpreter busy for seconds.
MAX_SEGMENTS = 65_536
# Progressive JPEGs have about 10 scans. Every scan visits the whole picture, however few bytes it
# has, so a small file with thousands of them would decode for minutes.
MAX_SCANS = 100

_JPEG_SIGNATURE = b"\xff\xd8\xff"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EXIF_PREFIX = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112


@unique
class ImageFormat(Enum):
    """What is taken; the value is the name that people and Pillow use."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A still picture, not yet decoded: `width` × `height` pixels as they are stored."""

    format: ImageFormat
    width: int
    height: int
    orientation: int  # EXIF 1..8: how to turn the stored pixels to see the picture upright
    data: bytes  # the file without what does not change a pixel


def parse_image_file(data: bytes) -> ImageFile:
    """Read the header of a JPEG, PNG or WebP file, whatever its name or Content-Type said.

    UnsupportedMediaTypeError: another format, or an animation. ImageError: empty, truncated or
    broken. Reads no pixel; takes time proportional to the number of segments, which is bounded.
    """
    if not data:
        raise ImageError("the image is empty: send the bytes of a JPEG, PNG or WebP file")
    if data.startswith(_JPEG_SIGNATURE):
        return _parse_jpeg(data)
    if data.startswith(_PNG_SIGNATURE):
        return _parse_png(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _parse_webp(data)
    raise UnsupportedMediaTypeError(f"{_describe(data)}; send a JPEG, PNG or WebP picture")


# What people send by mistake, told by how it begins.
_OTHER_FORMATS = (
    (0, b"GIF8", "this is a GIF"),
    (0, b"BM", "this is a BMP"),
    (0, b"II*\0", "this is a TIFF"),
    (0, b"MM\0*", "this is a TIFF"),
    (4, b"ftypavif", "this is an AVIF"),
    (4, b"ftypheic", "this is a HEIC"),
    (4, b"ftypheix", "this is a HEIC"),
    (4, b"ftypmif1", "this is a HEIF"),
    (4, b"ftyp", "this is a video or HEIF container"),
    (0, b"\0\0\0\x0cjP  ", "this is a JPEG 2000"),
    (0, b"\xff\x0a", "this is a JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "this is a JPEG XL"),
    (0, b"%PDF", "this is a PDF"),
    (0, b"<svg", "this is an SVG"),
    (0, b"<?xml", "this is XML"),
    (0, b"PK\x03\x04", "this is a ZIP archive"),
    (0, b"{", "this looks like JSON"),
)


def _describe(data: bytes) -> str:
    for offset, signature, description in _OTHER_FORMATS:
        if data[offset:].startswith(signature):
            return description
    return "this is no picture that is known here"


def _truncated(image_format: ImageFormat) -> ImageError:
    return ImageError(
        f"the {image_format.value} is truncated: the file ends too early; send it whole"
    )


def _broken(image_format: ImageFormat, what: str) -> ImageError:
    return ImageError(f"the {image_format.value} is broken: {what}; save the picture again")


def _bounded(count: int, image_format: ImageFormat) -> None:
    if count > MAX_SEGMENTS:
        raise _broken(image_format, f"more than {MAX_SEGMENTS} segments")


# --- JPEG: FF D8, then segments FF marker length payload, then scans -----------------------------

_SOS, _EOI = 0xDA, 0xD9
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # not DHT, JPG, DAC
_SEQUENTIAL = frozenset({0xC0, 0xC1, 0xC9})  # Huffman and arithmetic
_APP0_JFIF, _APP1_EXIF, _APP14_ADOBE = 0xE0, 0xE1, 0xEE  # JFIF and Adobe say which colour space
_STANDALONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}  # RSTn, SOI, stuffing and TEM: no length
_DROPPED = (frozenset(range(0xE0, 0xF0)) | {0xFE}) - {_APP0_JFIF, _APP14_ADOBE}


def _parse_jpeg(data: bytes) -> ImageFile:
    kept = [b"\xff\xd8"]
    size: tuple[int, int] | None = None
    one_scan_components = 0  # a sequential picture's scan of so many components is its only one
    orientation = 1
    for marker, start, end in _jpeg_segments(data):
        payload = data[start + 4 : end]
        if marker in _SOF:
            if size is not None or len(payload) < 6:
                raise _broken(ImageFormat.JPEG, "its frame header makes no sense")
            height, width = struct.unpack_from(">HH", payload, 1)
            size = (width, height)
            one_scan_components = payload[5] if marker in _SEQUENTIAL else 0
        elif marker == _APP1_EXIF and payload.startswith(_EXIF_PREFIX):
            orientation = _exif_orientation(payload[len(_EXIF_PREFIX) :])
        if marker == _SOS:
            scans = data[start:]
            if payload[:1] != bytes([one_scan_components]) and _too_many_scans(scans):
                raise _broken(ImageFormat.JPEG, f"more than {MAX_SCANS} scans")
            kept.append(scans)
        elif marker not in _DROPPED:
            kept.append(data[start:end])
    return _image_file(ImageFormat.JPEG, size, orientation, b"".join(kept))


def _too_many_scans(scans: bytes) -> bool:
    return scans.count(bytes([0xFF, _SOS])) > MAX_SCANS  # within a scan, FF is followed by 00


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of every segment up to the first start of scan, which ends it."""
    position = 2
    for count in itertools.count():
        _bounded(count, ImageFormat.JPEG)
        position = data.find(b"\xff", position)  # decoders skip stray bytes between segments
        if position < 0 or position + 4 > len(data):
            raise _truncated(ImageFormat.JPEG)
        marker = data[position + 1]
        if marker == 0xFF:  # padding
            position += 1
        elif marker in _STANDALONE:
            position += 2
        elif marker == _EOI:
            raise _broken(ImageFormat.JPEG, "it ends before any pixel")
        else:
            end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
            if end > len(data):
                raise _truncated(ImageFormat.JPEG)
            if end < position + 4:
                raise _broken(ImageFormat.JPEG, "a segment has no length")
            yield marker, position, end
            if marker == _SOS:
                return
            position = end


# --- PNG: a signature, then chunks length type payload crc ---------------------------------------

_PNG_INDEXED = 3
_PNG_KEPT = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})


def _parse_png(data: bytes) -> ImageFile:
    kept = [_PNG_SIGNATURE]
    size: tuple[int, int] | None = None
    depth, colour, has_palette = 8, 0, False
    orientation = 1
    for kind, start, end in _png_chunks(data):
        payload = data[start + 8 : end - 4]
        if size is None and kind != b"IHDR":
            raise _broken(ImageFormat.PNG, "it does not begin with its header")
        if kind == b"acTL" and int.from_bytes(payload[:4], "big") > 1:
            raise _animated("PNG")
        if kind == b"eXIf":
            orientation = _exif_orientation(payload)
        if kind not in _PNG_KEPT:
            continue
        if zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise _broken(ImageFormat.PNG, f"the checksum of its {kind.decode()} chunk is wrong")
        if kind == b"IHDR":
            if size is not None or len(payload) != 13:
                raise _broken(ImageFormat.PNG, "its header makes no sense")
            width, height, depth, colour = struct.unpack_from(">IIBB", payload)
            size = (width, height)
        has_palette |= kind == b"PLTE"
        if kind == b"IDAT" and colour == _PNG_INDEXED and not has_palette:
            raise _broken(ImageFormat.PNG, "its palette is missing")
        # A transparent colour given in 16 bits names no colour of the 8 bits it is read in.
        if not (kind == b"tRNS" and depth == 16):
            kept.append(data[start:end])
    return _image_file(ImageFormat.PNG, size, orientation, b"".join(kept))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of every chunk, IEND last."""
    position = len(_PNG_SIGNATURE)
    for count in itertools.count():
        _bounded(count, ImageFormat.PNG)
        kind = data[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise _truncated(ImageFormat.PNG)
        yield kind, position, end
        if kind == b"IEND":
            return
        position = end


# --- WebP: RIFF size WEBP, then chunks type length payload, padded to even -----------------------


def _parse_webp(data: bytes) -> ImageFile:
    if len(data) < 12 or len(data) < 8 + int.from_bytes(data[4:8], "little"):
        raise _truncated(ImageFormat.WEBP)
    size: tuple[int, int] | None = None
    orientation = 1
    for kind, payload in _webp_chunks(data[: 8 + int.from_bytes(data[4:8], "little")]):
        animated = kind == b"VP8X" and payload[:1] and payload[0] & 0x02
        if animated or kind in (b"ANIM", b"ANMF"):
            raise _animated("WebP")
        if size is None:  # the first chunk is VP8X, VP8 or VP8L and says how large the canvas is
            size = _webp_size(kind, payload)
        elif kind == b"EXIF":
            orientation = _exif_orientation(payload.removeprefix(_EXIF_PREFIX))
    return _image_file(ImageFormat.WEBP, size, orientation, data)


def _webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, payload) of every chunk."""
    position = 12
    for count in itertools.count():
        _bounded(count, ImageFormat.WEBP)
        if position + 8 > len(data):
            return
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        end = position + 8 + length
        if end > len(data):
            raise _truncated(ImageFormat.WEBP)
        yield data[position : position + 4], data[position + 8 : end]
        position = end + (length & 1)


def _webp_size(kind: bytes, payload: bytes) -> tuple[int, int] | None:
    if kind == b"VP8X" and len(payload) >= 10:
        sides = payload[4:7], payload[7:10]
        width, height = (int.from_bytes(side, "little") + 1 for side in sides)
        return width, height
    if kind == b"VP8 " and payload[3:6] == b"\x9d\x01\x2a" and len(payload) >= 10:
        width, height = struct.unpack_from("<HH", payload, 6)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and payload[:1] == b"\x2f" and len(payload) >= 5:
        bits = int.from_bytes(payload[1:5], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    raise _broken(ImageFormat.WEBP, "its header makes no sense")


# --- what they share -----------------------------------------------------------------------------


def _animated(name: str) -> UnsupportedMediaTypeError:
    return UnsupportedMediaTypeError(f"this is an animated {name}; send a still picture")


def _image_file(
    image_format: ImageFormat, size: tuple[int, int] | None, orientation: int, data: bytes
) -> ImageFile:
    if size is None or 0 in size:
        raise _broken(image_format, "it does not say how large it is")
    return ImageFile(image_format, *size, orientation, data)


def _exif_orientation(exif: bytes) -> int:
    """The orientation tag of EXIF data (a TIFF header and its first directory); 1 where unsaid.

    Broken EXIF is common in files that every viewer shows, so it is read as saying nothing.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, directory)
        for entry in range(entries):
            tag, kind, count, value = struct.unpack_from(
                order + "HHIH", exif, directory + 2 + 12 * entry
            )
            if tag == _ORIENTATION_TAG:
                return value if (kind, count) == (3, 1) and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1
