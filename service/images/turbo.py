"""Decodes small JPEGs by one call of libjpeg-turbo, to the bits that Pillow decodes.

Pillow passes the file to its decoder, and takes the pixels from it, in pieces, each by a call; for
a small file these calls take a fifth of the time. A file that libjpeg-turbo's call refuses or warns
of is left to Pillow, so that tolerance and messages stay the same.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from PIL import Image

# One is not built for every platform; Pillow decodes alone there.
_library: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None

MOST_PIXELS = 2**20
"""The most pixels of a small JPEG, as stored: a larger one would cost much more memory, or twice
the time where the call gives up at its end."""

BYTES = 3
"""The bytes per decoded pixel that are held in addition to Pillow's."""

_MODES = {"YCbCr": "RGB", "Gray": "L"}
_COLOURS = {"RGB": "RGB", "L": "GRAY"}


def decode(data: bytes, stored: tuple[int, int], shrink: int) -> Image.Image | None:
    """Return a JPEG of the `stored` size, decoded `shrink` times smaller, or None where that is
    left to Pillow."""
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
