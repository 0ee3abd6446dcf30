"""Reads an image's format, size and orientation from its header, before a decoder sees the file.

The parsers read just enough to enforce the limits. The decoder gets only the segments that affect
pixels: comments, colour profiles, thumbnails and EXIF cost no time or memory, and a hostile file
reaches less code.
"""

from service.errors import ImageError, UnsupportedMediaTypeError
from service.images.bmp import parse_bmp
from service.images.file import FORMATS, ImageFile, ImageFormat
from service.images.gif import parse_gif_image
from service.images.heif import parse_avif, parse_heic
from service.images.jpeg import parse_jpeg
from service.images.png import parse_png
from service.images.signatures import name_of
from service.images.tiff import parse_tiff
from service.images.webp import parse_webp

# Bytes of a text that was sent in place of a file, and how many of its characters are shown.
_MOST_TEXT, _SHOWN = 1024, 60

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
    if not data:
        raise ImageError(f"the image is empty: send the bytes of a {FORMATS} file")
    if begun := ImageFormat.of(data):
        if not begun.is_read:
            raise UnsupportedMediaTypeError(
                f"this server decodes no {begun.value}, for which Convoy is installed with its"
                f" extra `{begun.name.lower()}`; send a {FORMATS} image"
            )
        return _PARSERS[begun](data)
    name, text = name_of(data), _text_in(data)
    if text and not name:
        raise UnsupportedMediaTypeError(
            f"this is the text {text!r}; send a {FORMATS} image. With curl, @ before a file's name"
            " sends the file: -F file=@cat.jpg, or --data-binary @cat.jpg"
        )
    what = f"this is {name}" if name else "unrecognised image format"
    raise UnsupportedMediaTypeError(f"{what}; send a {FORMATS} image")


def _text_in(data: bytes) -> str:
    """Return the beginning of a text, such as a path or a word, that was sent in place of a file;
    empty for anything else."""
    if len(data) > _MOST_TEXT:
        return ""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        return ""
    return text[:_SHOWN] if text.isprintable() else ""
