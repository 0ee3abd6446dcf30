"""Reads the headers of BMP files: a file header of 14 bytes, and then a bitmap header that begins
with its length. Microsoft defines them as BITMAPFILEHEADER, BITMAPCOREHEADER, and BITMAPINFOHEADER
to BITMAPV5HEADER."""

import struct

from service.images.file import ImageFile, ImageFormat, Weight

_FORMAT = ImageFormat.BMP
_FILE_BYTES = 14
_CORE_BYTES = 12
_HEADERS = (40, 52, 56, 64, 108, 124)

_PLAIN, _RLE8, _RLE4, _FIELDS = 0, 1, 2, 3

# For each number of bits per pixel: bytes and nanoseconds per pixel, in addition to the file, which
# is copied. A grey palette takes a fifth of these bytes.
_WEIGHTS = {
    1: Weight(0.0, 2.1, 4),
    4: Weight(0.0, 5.1, 9),
    8: Weight(0.0, 5.1, 9),
    16: Weight(0.0, 4.2, 10),
    24: Weight(0.0, 4.2, 10),
    32: Weight(0.0, 4.2, 10),
}
_WITH_ALPHA = Weight(0.0, 8.5, 54)  # the same as a PNG with alpha

# A code of two bytes stands for at most 255 pixels.
_MOST_PIXELS_A_BYTE = 128


def parse_bmp(data: bytes) -> ImageFile:
    """Return a BMP's size and decoding cost. Raises ImageError if the file is truncated, broken or
    of an unsupported kind."""
    if len(data) < _FILE_BYTES + 4:
        raise _FORMAT.truncated()
    begin, length = struct.unpack_from("<II", data, _FILE_BYTES - 4)
    if length not in (_CORE_BYTES, *_HEADERS):
        raise _FORMAT.broken(f"its header has {length} bytes, which is not a valid length")
    if len(data) < _FILE_BYTES + length:
        raise _FORMAT.truncated()
    compression = _PLAIN
    if length == _CORE_BYTES:
        width, height, _, bits = struct.unpack_from("<HHHH", data, _FILE_BYTES + 4)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, _FILE_BYTES + 4)
    height = abs(height)  # negative: from top to bottom
    _FORMAT.check_size(width, height)
    if width < 0 or bits not in _WEIGHTS:
        raise _FORMAT.broken("its header is invalid")
    if compression not in (_PLAIN, _RLE8, _RLE4, _FIELDS):
        raise _FORMAT.broken(f"its compression method {compression} is unknown")
    coded_bytes = max(0, len(data) - begin)
    stored = (width * bits + 31) // 32 * 4 * height
    if compression in (_PLAIN, _FIELDS):
        if coded_bytes < stored:
            raise _FORMAT.truncated()
        least_bytes = stored
    else:
        least_bytes = width * height // _MOST_PIXELS_A_BYTE
    may_have_alpha = bits == 32 and compression == _FIELDS
    weight = _WITH_ALPHA if may_have_alpha else _WEIGHTS[bits]
    parts = [memoryview(data)]
    return ImageFile(_FORMAT, width, height, 1, 1, weight, coded_bytes, least_bytes, parts)
