"""Image files as bytes: which format, how large, which way up, before a decoder sees any of it.

JPEG, PNG and WebP are read here just far enough to hold the limits. What the decoder gets then
carries the image and nothing else: comments, colour profiles, thumbnails and EXIF are left out,
so no time or memory is spent on what nobody asked for, and a hostile file finds less to attack.
"""

from service.errors import ImageError, UnsupportedMediaTypeError
from service.images.file import ImageFile
from service.images.jpeg import parse_jpeg
from service.images.png import parse_png
from service.images.webp import parse_webp


def parse_image_file(data: bytes) -> ImageFile:
    """Read the header of a JPEG, PNG or WebP file, whatever its name or Content-Type said.

    UnsupportedMediaTypeError: another format, or an animation. ImageError: empty, truncated or
    broken. Reads no pixel; takes time proportional to the number of segments, which is bounded.
    """
    if not data:
        raise ImageError("the image is empty: send the bytes of a JPEG, PNG or WebP file")
    if data.startswith(b"\xff\xd8\xff"):
        return parse_jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return parse_png(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return parse_webp(data)
    raise UnsupportedMediaTypeError(f"{_describe(data)}; send a JPEG, PNG or WebP image")


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
        if data.startswith(signature, offset):
            return description
    return "unrecognised image format"
