"""Reads an image's format, size and orientation from its header, before a decoder sees the file.

The parsers read just enough to enforce the limits. The decoder gets only the segments that affect
pixels: comments, colour profiles, thumbnails and EXIF cost no time or memory, and a hostile file
reaches less code.
"""

from models import name_of
from service.errors import ImageError, UnsupportedMediaTypeError
from service.images.bmp import parse_bmp
from service.images.file import FORMATS, ImageFile, ImageFormat
from service.images.gif import parse_gif_image
from service.images.heif import parse_avif, parse_heic
from service.images.jpeg import parse_jpeg
from service.images.png import parse_png
from service.images.signatures import OTHERS
from service.images.tiff import parse_tiff
from service.images.webp import parse_webp

# Bytes of a text that was sent in place of a file, and how many of its characters are shown.
_MOST_TEXT, _SHOWN = 1024, 60

# Bytes that curl drops of a file that it sends by -d, and how many bytes no image has without them.
_DROPPED, _SURE = (b"\0", b"\r", b"\n"), 2048

_PARSERS = {
    ImageFormat.JPEG: parse_jpeg,
    ImageFormat.PNG: parse_png,
    ImageFormat.WEBP: parse_webp,
    ImageFormat.GIF: parse_gif_image,
    ImageFormat.BMP: parse_bmp,
    ImageFormat.TIFF: parse_tiff,
    ImageFormat.AVIF: parse_avif,
    ImageFormat.HEIF: parse_heic,
}


def parse_image_file(data: bytes) -> ImageFile:
    """Read the header of a file in one of the formats, whatever its name or Content-Type says.

    Raises UnsupportedMediaTypeError for another format or an animation, ImageError for an empty,
    truncated or broken file. Decodes no pixel; the time is proportional to the number of segments,
    which is bounded.
    """
    try:
        return _parsed(data)
    except (ImageError, UnsupportedMediaTypeError) as error:
        if len(data) < _SURE or data[:_SURE].isascii() or any(byte in data for byte in _DROPPED):
            raise
        raise type(error)(
            "this file has no line end and no zero, which curl drops of a file that it sends by -d;"
            " --data-binary @cat.jpg sends it whole"
        ) from None


def _parsed(data: bytes) -> ImageFile:
    if not data:
        raise ImageError(f"the image is empty: send the bytes of a {FORMATS} file")
    if begun := ImageFormat.of(data):
        if not begun.is_read:
            raise UnsupportedMediaTypeError(
                f"this server decodes no {begun.value}, for which Convoy is installed with its"
                f" extra `{begun.name.lower()}`; send a {FORMATS} image"
            )
        return _PARSERS[begun](data)
    raise unread(data, f"send a {FORMATS} image")


def unread(data: bytes, wanted: str) -> UnsupportedMediaTypeError:
    """Return the error for bytes of no format that is read; `wanted` says what would be right."""
    name, text = name_of(data, OTHERS), _text_in(data)
    if text and not name:
        return UnsupportedMediaTypeError(
            f"this is the text {text!r}; {wanted}. With curl, @ before a file's name sends the"
            " file: -F file=@cat.jpg, or --data-binary @cat.jpg"
        )
    what = f"this is {name}" if name else f"these {len(data)} bytes are no image that is known"
    return UnsupportedMediaTypeError(f"{what}; {wanted}")


def _text_in(data: bytes) -> str:
    """Return the beginning of a text's first line, such as a path or a word, that was sent in place
    of a file; empty for anything else."""
    if len(data) > _MOST_TEXT:
        return ""
    try:
        lines = data.decode().strip().splitlines()
    except UnicodeDecodeError:
        return ""
    return lines[0][:_SHOWN] if lines and all(map(str.isprintable, lines)) else ""
