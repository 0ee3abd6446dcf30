"""Defines the facts that are read from an image's header, and the errors that all image formats
share.

The formats are specified in ITU-T T.81 annex B (JPEG), the PNG specification (third edition)
sections 5 and 11, RFC 9649 (WebP) and TIFF 6.0. CIPA DC-008 (EXIF) specifies the orientation.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import Enum, unique
from importlib.util import find_spec
from typing import NamedTuple

from service.errors import ImageError, UnsupportedMediaTypeError

# Real files have tens of segments, or one per 8 kB of pixels. An empty segment has four bytes, and
# takes about a microsecond to skip.
_SEGMENTS = 1024
_BYTES_A_SEGMENT = 1024

# A camera's EXIF has 10 to 60 entries in its first directory.
_EXIF_ENTRIES = 512
_ORIENTATION_TAG = 0x0112


Marks = Mapping[int, bytes]
"""The magic bytes that identify a file's format, by their offset in the file."""


def _also(brand: bytes) -> Sequence[Marks]:
    """Return the magic bytes of HEIF files whose major brand is the general brand `mif1`, and whose
    first three compatible brands include `brand`. Some phones write these files."""
    return [{4: b"ftypmif1", at: brand} for at in (16, 20, 24)]


@unique
class ImageFormat(Enum):
    """Lists the formats. A member's name is Pillow's name of the format, and its value is the usual
    name.

    This is the only table of formats. Its columns are the usual name, the alternative magic bytes,
    the media type, the suffixes of file names, and the plugin that Pillow needs, if any.
    """

    JPEG = "JPEG", [{0: b"\xff\xd8\xff"}], "image/jpeg", [".jpg", ".jpeg"]
    PNG = "PNG", [{0: b"\x89PNG\r\n\x1a\n"}], "image/png", [".png"]
    WEBP = "WebP", [{0: b"RIFF", 8: b"WEBP"}], "image/webp", [".webp"]
    GIF = "GIF", [{0: b"GIF8"}], "image/gif", [".gif"]  # the first frame
    # A BMP's reserved bytes are 0: the two letters alone also begin other files.
    BMP = "BMP", [{0: b"BM", 6: bytes(4)}], "image/bmp", [".bmp", ".dib"]
    TIFF = "TIFF", [{0: b"II*\0"}, {0: b"MM\0*"}], "image/tiff", [".tif", ".tiff"]  # the first page

    AVIF = (
        *("AVIF", [{4: b"ftypavif"}, {4: b"ftypavis"}, *_also(b"avif")]),
        *("image/avif", [".avif"]),
    )
    HEIF = (
        *("HEIC", [{4: b"ftypheic"}, {4: b"ftypheix"}, *_also(b"heic")]),
        *("image/heic", [".heic", ".heif"], "pi_heif"),
    )

    marks: Sequence[Marks]
    media_type: str
    suffixes: Sequence[str]
    plugin: str

    def __new__(
        cls,
        spelling: str,
        marks: Sequence[Marks],
        media_type: str,
        suffixes: Sequence[str],
        plugin: str = "",
    ) -> "ImageFormat":
        """Return the member for one row of the table."""
        member = object.__new__(cls)
        member._value_ = spelling
        member.marks, member.media_type, member.suffixes = marks, media_type, suffixes
        member.plugin = plugin
        return member

    @classmethod
    def of(cls, data: bytes) -> "ImageFormat | None":
        """Return the format whose magic bytes a file has, or None."""
        return next((kind for kind in cls if kind.begins(data)), None)

    def begins(self, data: bytes) -> bool:
        """Return whether a file has magic bytes of this format."""
        for marks in self.marks:  # explicit: this runs several times per request
            for at, mark in marks.items():
                if not data.startswith(mark, at):
                    break
            else:
                return True
        return False

    @property
    def is_read(self) -> bool:
        """Return whether this installation can decode the format."""
        return not self.plugin or find_spec(self.plugin) is not None

    def truncated(self) -> ImageError:
        """Return the error for a file that ends too early."""
        return ImageError(f"the {self.value} is truncated: the file ends too early; send it whole")

    def broken(self, what: str) -> ImageError:
        """Return the error for a file that contradicts its format."""
        return ImageError(f"the {self.value} is broken: {what}; save the image again")

    def animated(self) -> UnsupportedMediaTypeError:
        """Return the error for a file with several frames, where a still image is needed."""
        return UnsupportedMediaTypeError(f"this is an animated {self.value}; send a still image")

    def check_size(self, width: int, height: int) -> None:
        """Raise ImageError if the width or the height is 0."""
        if not (width and height):
            raise self.broken("its width or height is 0 or missing")

    def check_density(self, width: int, height: int, coded_bytes: int, least_bytes: int) -> None:
        """Raise ImageError if the image has fewer coded bytes than any encoder needs for its
        pixels.

        Decoders would fill missing pixels with grey, and take as long as for a whole image.
        """
        if coded_bytes < least_bytes:
            raise self.broken(
                f"{width}×{height} pixels need at least {least_bytes} bytes, but the file has"
                f" {coded_bytes}"
            )

    def segments(self, file_bytes: int, more: int = 0) -> range:
        """Return a range with as many numbers as a parser may read segments from a file of
        `file_bytes` bytes. No real file of this length has as many segments. A clip may have `more`
        of them. A parser that reaches the end of the range raises the error of `crowded`."""
        return range(_SEGMENTS + file_bytes // _BYTES_A_SEGMENT + more + 1)

    def crowded(self, file_bytes: int, more: int = 0) -> ImageError:
        """Return the error for a file with more segments than any real file has."""
        most = len(self.segments(file_bytes, more)) - 1
        return self.broken(f"it has more than {most} segments in {file_bytes} bytes")


class Reorientation(NamedTuple):
    """Describes how to rotate and mirror the stored pixels into the upright image: first reverse
    these axes, and then swap the axes if `transposed`."""

    x_reversed: bool = False
    y_reversed: bool = False
    transposed: bool = False


REORIENTATIONS = {
    1: Reorientation(),
    2: Reorientation(x_reversed=True),
    3: Reorientation(x_reversed=True, y_reversed=True),
    4: Reorientation(y_reversed=True),
    5: Reorientation(transposed=True),
    6: Reorientation(y_reversed=True, transposed=True),
    7: Reorientation(x_reversed=True, y_reversed=True, transposed=True),
    8: Reorientation(x_reversed=True, transposed=True),
}
"""Maps EXIF's orientation to the reorientation that turns stored pixels upright."""

_NAMES = [kind.value for kind in ImageFormat if kind.is_read]

FORMATS = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"
"""The accepted formats, as messages name them: "JPEG, PNG, ... or TIFF"."""


class Weight(NamedTuple):
    """Holds the cost of decoding one stored pixel. The numbers were measured for each format.

    `tests/service/images/test_decode_memory.py` checks the bytes against Pillow's allocations.
    """

    held_bytes: float  # at any output size: coefficients, canvases
    drawn_bytes: float  # of pixels, of which a JPEG decodes fewer where it is scaled down
    ns: float  # of one core


class ImageFile(NamedTuple):
    """Describes an image before it is decoded. `width` and `height` count the pixels as stored in
    the file, before any rotation."""

    format: ImageFormat
    width: int
    height: int
    orientation: int  # EXIF 1..8: how to turn the stored pixels upright
    scans: int  # passes of the decoder over all pixels
    weight: Weight
    coded_bytes: int  # of pixels
    least_bytes: int  # the fewest in which any encoder can code this many pixels
    parts: Sequence[memoryview]  # the segments that affect pixels
    frames: int = 1  # of an animation, where one is allowed

    @property
    def pixels(self) -> int:
        """Return width times height."""
        return self.width * self.height


def exif_orientation(exif: bytes | memoryview) -> int:
    """Return the orientation in EXIF data, or 1 if the data have none or are broken."""
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
        pass
    return 1
