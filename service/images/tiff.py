"""Reads the headers of TIFF files: the byte order, and then a directory of tags with 12 bytes each
(TIFF 6.0, section 2).

The decoder gets only the first page, with a new directory that lists only the tags that affect
pixels. Otherwise, the decoder would read every tag, and a tag may be as long as the file.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.errors import UnsupportedMediaTypeError
from service.images.file import ImageFile, ImageFormat, Weight

_FORMAT = ImageFormat.TIFF
_HEADER_BYTES, _ENTRY_BYTES = 8, 12

# Cameras and scanners write 15 to 60 tags.
_MOST_TAGS = 512

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _ORIENTATION, _SAMPLES, _ROWS, _STRIP_BYTES = 273, 274, 277, 278, 279
_PLANES, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 284, 322, 323, 324, 325
_FILL_ORDER, _PREDICTOR, _COLOUR_MAP, _EXTRA, _SAMPLE_FORMAT = 266, 317, 320, 338, 339
_KEPT = frozenset(
    (
        *(_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _STRIP_OFFSETS, _SAMPLES, _ROWS),
        *(_STRIP_BYTES, _PLANES, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES),
        *(_FILL_ORDER, _PREDICTOR, _COLOUR_MAP, _EXTRA, _SAMPLE_FORMAT),
    )
)

# For each type of tag: its bytes, and its letter in `struct`.
_TYPES = {1: (1, "B"), 3: (2, "H"), 4: (4, "I")}

# For each compression: the most bytes that one byte stands for. LZW has codes of 12 bits for up to
# 4096 bytes, deflate reaches 1032 to 1, and PackBits codes 128 bytes in two.
_PLAIN, _LZW, _DEFLATE, _OLD_DEFLATE, _PACK_BITS = 1, 5, 8, 32946, 32773
_RATIOS = {_PLAIN: 1, _LZW: 2731, _DEFLATE: 1032, _OLD_DEFLATE: 1032, _PACK_BITS: 64}
_NAMES = {2: "fax", 3: "fax", 4: "fax", 6: "JPEG", 7: "JPEG", 50000: "Zstandard", 50001: "WebP"}

_WHITE_IS_0, _BLACK_IS_0, _RGB, _INDEXED, _CMYK = 0, 1, 2, 3, 5
_RGB_SAMPLES = 3
_COLOURS = {_WHITE_IS_0: 1, _BLACK_IS_0: 1, _RGB: 3, _INDEXED: 1, _CMYK: 4}

# The most strips or tiles, and their least bytes: encoders write 8 kB or more in each but the last.
_PIECES, _BYTES_A_PIECE = 4096, 64
_MOST_SAMPLES = 6

# Bytes and nanoseconds per pixel of the images that Pillow creates from a page; decompressing takes
# additional time per byte.
_BLACK_OR_WHITE, _GREY, _WIDE_GREY, _COLOURS_OF_MAP = (2.1, 3), (1.2, 2), (6.1, 4), (5.2, 4)
_COLOUR, _FOUR, _GREY_WITH_ALPHA = (4.6, 5), (8.3, 9), (12.3, 10)
_NS_A_BYTE = {_PLAIN: 0, _LZW: 4, _DEFLATE: 4, _OLD_DEFLATE: 4, _PACK_BITS: 1}


class _Tag(NamedTuple):
    entry: memoryview  # as in the directory
    values: Sequence[int]


def parse_tiff(data: bytes) -> ImageFile:
    """Return the size, orientation and decoding cost of a TIFF's first page. The parts of the
    returned `ImageFile` contain only that page.

    Raises ImageError if the file is truncated or broken, and UnsupportedMediaTypeError if its kind
    is not supported.
    """
    order = "<" if data.startswith(b"II") else ">"
    tags = dict(_tags(data, order))
    width, height = _first(tags, _WIDTH), _first(tags, _HEIGHT)
    _FORMAT.check_size(width, height)
    samples, bits, compression = _kind(tags)
    pieces = _Pieces(tags, width, height, samples)
    offsets, sizes = pieces.places()
    if len(offsets) > _PIECES + len(data) // _BYTES_A_PIECE:
        raise _FORMAT.broken(f"it has more than {_PIECES} strips or tiles in {len(data)} bytes")
    if any(offset + size > len(data) for offset, size in zip(offsets, sizes, strict=True)):
        raise _FORMAT.truncated()
    raw_bits = bits * samples
    raw_bytes = pieces.rows * ((pieces.width * raw_bits + 7) // 8)
    times = pieces.width * pieces.rows / (width * height)
    weight = _weight(tags, samples, bits, compression, times, pieces.largest / (width * height))
    orientation = _first(tags, _ORIENTATION, 1)
    return ImageFile(
        *(_FORMAT, width, height, orientation if 1 <= orientation <= 8 else 1, 1, weight),
        *(sum(sizes), raw_bytes // _RATIOS[compression], _parts(data, order, tags)),
    )


def _tags(data: bytes, order: str) -> Iterator[tuple[int, _Tag]]:
    """Yield the tags in the first directory that affect pixels or orientation, each with its
    number."""
    view, seen = memoryview(data), set[int]()
    try:
        (begin,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, begin)
        if count > _MOST_TAGS:
            raise _FORMAT.broken(f"its directory has {count} tags, more than {_MOST_TAGS}")
        for at in range(begin + 2, begin + 2 + _ENTRY_BYTES * count, _ENTRY_BYTES):
            tag, kind, number = struct.unpack_from(order + "HHI", data, at)
            if tag not in _KEPT and tag != _ORIENTATION:
                continue
            if kind not in _TYPES:
                raise _FORMAT.broken(f"its tag {tag} has the unknown type {kind}")
            if tag in seen or number > _PIECES + len(data) // _BYTES_A_PIECE:
                raise _FORMAT.broken(f"its tag {tag} occurs twice, or has {number} values")
            seen.add(tag)
            size, letter = _TYPES[kind]
            place = at + 8
            if size * number > 4:
                (place,) = struct.unpack_from(order + "I", data, place)
            if place + size * number > len(data):
                raise _FORMAT.truncated()
            values = struct.unpack_from(f"{order}{number}{letter}", data, place)
            yield tag, _Tag(view[at : at + _ENTRY_BYTES], values)
    except struct.error:
        raise _FORMAT.truncated() from None


def _first(tags: dict[int, _Tag], tag: int, otherwise: int = 0) -> int:
    return tags[tag].values[0] if tag in tags and tags[tag].values else otherwise


def _kind(tags: dict[int, _Tag]) -> tuple[int, int, int]:
    """Return a page's samples per pixel, bits per sample and compression. Raises
    UnsupportedMediaTypeError for unsupported values."""
    compression = _first(tags, _COMPRESSION, _PLAIN)
    if compression not in _RATIOS:
        name = _NAMES.get(compression, f"number {compression}")
        raise UnsupportedMediaTypeError(
            f"this TIFF has the unsupported compression {name}; save it with LZW, with"
            " deflate, or without compression"
        )
    colours = _first(tags, _PHOTOMETRIC)
    samples = _first(tags, _SAMPLES, 1)
    depths = {*(tags[_BITS].values if _BITS in tags else (1,))}
    bits = max(depths, default=0)
    wide = bits in (8, 16) or (bits in (1, 2, 4) and samples == 1)
    if len(depths) != 1 or not wide or {*_formats(tags)} != {1}:
        raise UnsupportedMediaTypeError(
            f"this TIFF has samples of {', '.join(map(str, sorted(depths)))} bits, or samples"
            " that are not integers; save it with integers of 8 or 16 bits per sample"
        )
    if not _COLOURS.get(colours, _MOST_SAMPLES) <= samples <= _MOST_SAMPLES:
        raise UnsupportedMediaTypeError(
            f"this TIFF has {samples} samples per pixel and the colour space {colours}; save it as"
            " grey, RGB, RGBA or CMYK"
        )
    return samples, bits, compression


def _formats(tags: dict[int, _Tag]) -> Sequence[int]:
    return tags[_SAMPLE_FORMAT].values if _SAMPLE_FORMAT in tags else (1,)


class _Pieces:
    """Lists the strips or tiles in which a page is stored. Strips or tiles at the edges may lie
    partly outside the page."""

    def __init__(self, tags: dict[int, _Tag], width: int, height: int, samples: int) -> None:
        self._tags = tags
        self._tiled = _TILE_OFFSETS in tags
        across = _first(tags, _TILE_WIDTH) if self._tiled else width
        rows = _first(tags, _TILE_HEIGHT) if self._tiled else _first(tags, _ROWS, height)
        rows = rows if self._tiled else min(rows, height)
        if not (across and rows):
            raise _FORMAT.broken("its strips or tiles have no pixels")
        columns, lines = -(-width // across), -(-height // rows)
        self.width = columns * across
        self.largest = across * rows  # pixels of one of them
        self.rows = lines * rows if self._tiled else height
        # No encoder writes a tile of more than twice the page, and the whole tile would be decoded.
        if self.width * self.rows > 2 * width * height + (1 << 20):
            raise _FORMAT.broken(f"its tiles of {across}×{rows} pixels are larger than the image")
        planes = samples if _first(tags, _PLANES, 1) == 2 else 1
        self._count = columns * lines * planes

    def places(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the file offsets of the strips or tiles, and their lengths in bytes."""
        names = (_TILE_OFFSETS, _TILE_BYTES) if self._tiled else (_STRIP_OFFSETS, _STRIP_BYTES)
        offsets, sizes = (self._tags[name].values if name in self._tags else () for name in names)
        if not len(offsets) == len(sizes) == self._count:
            raise _FORMAT.broken(
                f"it lists {len(offsets)} strips or tiles and {len(sizes)} sizes, but needs"
                f" {self._count} of each"
            )
        return offsets, sizes


def _weight(
    tags: dict[int, _Tag], samples: int, bits: int, compression: int, times: float, part: float
) -> Weight:
    """Return the cost of decoding one pixel of the page.

    `times` is the number of decoded pixels divided by the number of pixels of the page. `part` is
    the size of the largest strip or tile divided by the size of the page.
    """
    colours = _first(tags, _PHOTOMETRIC)
    if samples > 1:
        drawn, ns = _FOUR if samples > _RGB_SAMPLES else _COLOUR
        if _COLOURS[colours] == 1:
            drawn, ns = _GREY_WITH_ALPHA
    elif colours == _INDEXED:
        drawn, ns = _COLOURS_OF_MAP
    else:
        drawn, ns = {1: _BLACK_OR_WHITE, 16: _WIDE_GREY}.get(bits, _GREY)
    pixel_bytes = samples * bits / 8
    # libtiff decodes into a buffer for one strip or tile, which may be the whole page.
    held = 0 if compression == _PLAIN else part * pixel_bytes
    return Weight(held, drawn, times * (ns + pixel_bytes * _NS_A_BYTE[compression]))


def _parts(data: bytes, order: str, tags: dict[int, _Tag]) -> Sequence[memoryview]:
    """Return the file with a new directory at its end. The new directory has only the tags that
    affect pixels, and refers to no further page."""
    entries = [tags[tag].entry for tag in sorted(tags) if tag in _KEPT]
    begin = len(data) + (len(data) & 1)
    head = data[:4] + struct.pack(order + "I", begin)
    end = bytes(begin - len(data)) + struct.pack(order + "H", len(entries))
    directory = b"".join((end, *entries, bytes(4)))
    return [memoryview(head), memoryview(data)[_HEADER_BYTES:], memoryview(directory)]
