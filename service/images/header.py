"""Reads an image's format, size and orientation from its header, before a decoder sees the file.

The parsers read just enough to enforce the limits. The decoder gets only the segments that affect
pixels: comments, colour profiles, thumbnails and EXIF cost no time or memory, and a hostile file
reaches less code.
"""

from service.errors import ImageError, UnsupportedMediaTypeError
from service.images.file import ImageFile, ImageFormat
from service.images.jpeg import parse_jpeg
from service.images.png import parse_png
from service.images.webp import parse_webp

_PARSERS = {
    ImageFormat.JPEG: parse_jpeg,
    ImageFormat.PNG: parse_png,
    ImageFormat.WEBP: parse_webp,
}

# (offset, signature) of formats that clients send by mistake; the first match names the format.
_OTHER_FORMATS = {
    (0, b"GIF8"): "this is a GIF",
    (0, b"BM"): "this is a BMP",
    (0, b"II*\0"): "this is a TIFF",
    (0, b"MM\0*"): "this is a TIFF",
    (4, b"ftypavif"): "this is an AVIF",
    (4, b"ftypheic"): "this is a HEIC",
    (4, b"ftypheix"): "this is a HEIC",
    (4, b"ftypmif1"): "this is a HEIF",
    (4, b"ftyp"): "this is a video or HEIF container",
    (0, b"\0\0\0\x0cjP  "): "this is a JPEG 2000",
    (0, b"\xff\x0a"): "this is a JPEG XL",
    (0, b"\0\0\0\x0cJXL "): "this is a JPEG XL",
    (0, b"%PDF"): "this is a PDF",
    (0, b"<svg"): "this is an SVG",
    (0, b"<?xml"): "this is XML",
    (0, b"PK\x03\x04"): "this is a ZIP archive",
    (0, b"{"): "this looks like JSON",
    (0, b""): "unrecognised image format",
}


def parse_image_file(data: bytes) -> ImageFile:
    """Read the header of a JPEG, PNG or WebP file, regardless of its name or Content-Type.

    Raises UnsupportedMediaTypeError for another format or an animation, ImageError for an empty,
    truncated or broken file. Decodes no pixel; the time is proportional to the number of segments,
    which is bounded.
    """
    if not data:
        raise ImageError("the image is empty: send the bytes of a JPEG, PNG or WebP file")
    if begun := ImageFormat.of(data):
        return _PARSERS[begun](data)
    names = (name for (at, sign), name in _OTHER_FORMATS.items() if data.startswith(sign, at))
    raise UnsupportedMediaTypeError(f"{next(names)}; send a JPEG, PNG or WebP image")
