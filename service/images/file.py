"""What is known of an image file before it is decoded, and what every format's header may do wrong.

Formats: ITU-T T.81 annex B (JPEG), the PNG specification (third edition) sections 5 and 11,
RFC 9649 (WebP), and CIPA DC-008 (EXIF) for the orientation.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from service.errors import ImageError, UnsupportedMediaTypeError

# Real files have tens of segments, or one for each 8 kB of pixels. An empty one takes four bytes,
# and about a microsecond to step over.
_SEGMENTS = 1024
_BYTES_A_SEGMENT = 1024

# A camera's EXIF has 10 to 60 entries in its first directory.
_EXIF_ENTRIES = 512
_ORIENTATION_TAG = 0x0112


@unique
class ImageFormat(Enum):
    """The formats that are read; the value is the name that people and Pillow use."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"


class Weight(NamedTuple):
    """What decoding takes for each pixel as stored; each format's table was measured.

    `tests/service/images/test_decode_memory.py` holds the bytes against what Pillow really takes.
    """

    held_bytes: float  # however small the image is wanted: coefficients, canvases
    drawn_bytes: float  # of pixels, which a JPEG can be decoded to fewer of
    ns: float  # of one core


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A still image, not yet decoded: `width` × `height` pixels as they are stored."""

    format: ImageFormat
    width: int
    height: int
    orientation: int  # EXIF 1..8: how to turn the stored pixels to see the image upright
    scans: int  # how many times the decoder visits every pixel
    weight: Weight
    coded_bytes: int  # of pixels
    least_bytes: int  # that so many pixels can be coded in, by whatever encoder
    parts: Sequence[memoryview]  # the file without what does not change a pixel

    @property
    def pixels(self) -> int:
        """How many there are."""
        return self.width * self.height


def truncated(image_format: ImageFormat) -> ImageError:
    """The file ends too early."""
    return ImageError(
        f"the {image_format.value} is truncated: the file ends too early; send it whole"
    )


def broken(image_format: ImageFormat, what: str) -> ImageError:
    """The file contradicts its format."""
    return ImageError(f"the {image_format.value} is broken: {what}; save the image again")


def animated(image_format: ImageFormat) -> UnsupportedMediaTypeError:
    """The file has several images, of which nobody said which one to classify."""
    return UnsupportedMediaTypeError(
        f"this is an animated {image_format.value}; send a still image"
    )


def check_segments(count: int, data: bytes, image_format: ImageFormat) -> None:
    """ImageError if `count` is more segments than a file of so many bytes has."""
    most = _SEGMENTS + len(data) // _BYTES_A_SEGMENT
    if count > most:
        raise broken(image_format, f"more than {most} segments in {len(data)} bytes")


def check_size(image_format: ImageFormat, size: tuple[int, int] | None) -> tuple[int, int]:
    """(width, height), both at least 1; ImageError."""
    if size is None or 0 in size:
        raise broken(image_format, "it does not say how large it is")
    return size


def exif_orientation(exif: bytes | memoryview) -> int:
    """The orientation tag of EXIF data (a TIFF header and its first directory); 1 where unsaid.

    Broken EXIF is common in files that every viewer shows, so it is read as saying nothing.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(exif[:4]))
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, directory)
        for entry in range(min(entries, _EXIF_ENTRIES)):
            tag, kind, count, value = struct.unpack_from(
                order + "HHIH", exif, directory + 2 + 12 * entry
            )
            if tag == _ORIENTATION_TAG:
                return value if (kind, count) == (3, 1) and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1
