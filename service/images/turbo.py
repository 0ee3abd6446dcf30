"""Decodes small JPEGs with one call of libjpeg-turbo. The pixels are identical to Pillow's.

Pillow passes the file to its decoder in small blocks, and reads the pixels in small blocks, with
one call per block. For a small file, these calls take a fifth of the time. If libjpeg-turbo refuses
a file or warns about it, Pillow decodes the file, so that Convoy accepts the same files with the
same messages.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from PIL import Image

# libjpeg-turbo's binding is not built for every platform; without it, Pillow decodes all files.
_library: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None

MOST_PIXELS = 2**20
"""The largest number of pixels in a JPEG file that this module decodes. A larger JPEG would cost
much more memory, or twice the time if the call fails near its end."""

BYTES = 3
"""The bytes per decoded pixel that this module needs in addition to Pillow's memory."""

_MODES = {"YCbCr": "RGB", "Gray": "L"}
_COLOURS = {"RGB": "RGB", "L": "GRAY"}


def decode(data: bytes, stored: tuple[int, int], shrink: int) -> Image.Image | None:
    """Return the image in a JPEG of the size `stored`, reduced by the factor `shrink`. Return None
    if Pillow must decode the file."""
    width, height = stored
    if _library is None or width * height > MOST_PIXELS:
        return None
    size = -(-width // shrink), -(-height // shrink)
    try:
        *found, colours, _ = _library.decode_jpeg_header(data)
        mode = _MODES.get(colours)
        if mode is None or found != [height, width]:
            return None
        pixels = _library.decode_jpeg(data, _COLOURS[mode], min_width=size[0], min_height=size[1])
    except ValueError:
        return None
    if pixels.shape[:2] != size[::-1]:
        return None
    return Image.frombuffer(mode, size, pixels, "raw", mode, 0, 1)
