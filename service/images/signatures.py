"""Recognises kinds of files by the bytes with which they begin."""

from collections.abc import Mapping
from typing import NamedTuple


class Signature(NamedTuple):
    """Names a kind of file, and its files' bytes at some offsets."""

    name: str
    marks: Mapping[int, bytes]

    def begins(self, data: bytes) -> bool:
        """Return whether a file begins like this kind."""
        return all(data.startswith(mark, at) for at, mark in self.marks.items())


JPEG = Signature("a JPEG", {0: b"\xff\xd8\xff"})
PNG = Signature("a PNG", {0: b"\x89PNG\r\n\x1a\n"})
WEBP = Signature("a WebP", {0: b"RIFF", 8: b"WEBP"})
GIF = Signature("a GIF", {0: b"GIF8"})
# Its reserved bytes are 0: two letters alone begin other files, too.
BMP = Signature("a BMP", {0: b"BM", 6: bytes(4)})
ZIP = Signature("a ZIP archive", {0: b"PK\x03\x04"})
MP4 = Signature("a video or HEIF container", {4: b"ftyp"})
WEBM = Signature("a WebM or Matroska video", {0: b"\x1a\x45\xdf\xa3"})

# What else clients send by mistake.
_OTHERS = (
    Signature("a TIFF", {0: b"II*\0"}),
    Signature("a TIFF", {0: b"MM\0*"}),
    Signature("an AVIF", {4: b"ftypavif"}),
    Signature("a HEIC", {4: b"ftypheic"}),
    Signature("a HEIC", {4: b"ftypheix"}),
    Signature("a HEIF", {4: b"ftypmif1"}),
    MP4,
    WEBM,
    Signature("a JPEG 2000", {0: b"\0\0\0\x0cjP  "}),
    Signature("a JPEG XL", {0: b"\xff\x0a"}),
    Signature("a JPEG XL", {0: b"\0\0\0\x0cJXL "}),
    Signature("a PDF", {0: b"%PDF"}),
    Signature("an SVG", {0: b"<svg"}),
    Signature("XML", {0: b"<?xml"}),
    Signature("text that looks like JSON", {0: b"{"}),
)


def name_of(data: bytes) -> str:
    """Return the name of the first signature that a file has, or "" if its kind is not known."""
    every = (JPEG, PNG, WEBP, GIF, BMP, ZIP, *_OTHERS)
    return next((kind.name for kind in every if kind.begins(data)), "")
