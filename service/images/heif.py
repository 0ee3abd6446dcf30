"""Reads the headers of AVIF and HEIC images, which consist of boxes (ISO/IEC 14496-12 and
23008-12). A box has a size, a kind and a payload. The headers of the coded images are defined in
AV1's specification 5.5 and H.265 7.3.2.2.

    meta ─┬─ pitm        which item is the image
          ├─ iinf, iref  the type of each item; the tiles and the alpha image that it refers to
          ├─ iprp        the properties of items: size, rotation, the decoder's configuration
          └─ iloc        where the coded bytes of each item are

The size of an image is stored twice: in the container, which readers use, and in the coded bytes,
which the decoder uses to allocate memory. Both sizes are read, and the bytes of each image are
searched for a second image, so that a small file cannot become a large image.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from service.images.boxes import boxes
from service.images.file import ImageFile, ImageFormat, Weight

# The most items: a photograph of 48 megapixels has 192 tiles of 512×512 pixels, and as many for its
# depth.
_MOST_ITEMS = 2048
_MOST_PROPERTIES = 4096
_MOST_BOXES = 8192

# An encoder pads an image to whole blocks of up to 64 pixels.
_BLOCK = 64

# The pixels by which a small image may be padded: the size of a tile.
_FREE_PIXELS = 2**20

# The most units of an image: one frame, its tiles or slices, and the units that describe them.
_MOST_UNITS = 1024
_SEQUENCE_BYTES = 256  # the size is in the first few bytes

_ALPHAS = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")

_GREY_PLANES = 1.0

_GRID, _AV1, _HEVC = b"grid", b"av01", b"hvc1"

_SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6  # AV1's units
_SPS, _FIRST_SLICES = 33, 32  # HEVC's units: a sequence's parameters; below are images


class _Item(NamedTuple):
    kind: bytes
    properties: Sequence[tuple[bytes, memoryview]]
    data: Sequence[memoryview]


class _Codec(NamedTuple):
    """Describes how a format codes images, and the cost of decoding one image.

    `grey`, `colour` and `clear` (colour with alpha) are bytes per pixel in addition to the
    decoder's planes. `ns_a_byte` is nanoseconds per coded byte.
    """

    kind: bytes  # of an item
    setup: bytes  # the property that has the sequence's parameters
    grey: float
    colour: float
    clear: float
    ns_a_byte: int
    most_pixels: int  # a byte
    turns: bool  # the decoder crops and turns the image


# For an image of one colour, libaom needs a byte per 16,000 pixels, x265 a byte per 1,700. Times
# are measured by the clock, because HEIC is decoded in another thread, which `thread_time` does not
# count.
_CODECS = {
    ImageFormat.AVIF: _Codec(
        *(_AV1, b"av1C", 2.7, 7.8, 9.4), ns_a_byte=110, most_pixels=2**16, turns=False
    ),
    ImageFormat.HEIF: _Codec(
        *(_HEVC, b"hvcC", 2.4, 6.1, 6.4), ns_a_byte=110, most_pixels=2**14, turns=True
    ),
}
_NS = 15


def parse_avif(data: bytes) -> ImageFile:
    """Return an AVIF's size, orientation and decoding cost. Raises ImageError if the file is
    truncated or broken, and UnsupportedMediaTypeError for an animation."""
    return _Heif(ImageFormat.AVIF, data).read()


def parse_heic(data: bytes) -> ImageFile:
    """Return a HEIC's size, orientation and decoding cost. Raises the same errors as
    `parse_avif`."""
    return _Heif(ImageFormat.HEIF, data).read()


# EXIF's orientations by the stored positions of the upright image's corners, clockwise from the top
# left.
_ORIENTATION_OF: Mapping[tuple[int, ...], int] = {
    (0, 1, 2, 3): 1,
    (1, 0, 3, 2): 2,
    (2, 3, 0, 1): 3,
    (3, 2, 1, 0): 4,
    (0, 3, 2, 1): 5,
    (3, 0, 1, 2): 6,
    (2, 1, 0, 3): 7,
    (1, 2, 3, 0): 8,
}


class _Heif:
    def __init__(self, kind: ImageFormat, data: bytes) -> None:
        self._format, self._codec, self._view = kind, _CODECS[kind], memoryview(data)
        self._boxes_left = _MOST_BOXES

    def read(self) -> ImageFile:
        try:
            return self._read()
        except (struct.error, IndexError):
            raise self._format.truncated() from None

    def _read(self) -> ImageFile:
        top: dict[bytes, memoryview] = {}
        for kind, box in self._boxes(self._view):
            top.setdefault(kind, box)
            if kind == b"meta":  # what follows may be anything
                break
        if b"moov" in top or bytes(self._view[8:12]) == b"avis":
            raise self._format.animated()
        if b"meta" not in top:
            raise self._format.broken("it has no `meta` box")
        meta = dict(self._boxes(top[b"meta"][4:]))
        for needed in (b"pitm", b"iinf", b"iprp", b"iloc"):
            if needed not in meta:
                raise self._format.broken(f"it has no `{needed.decode()}` box")
        items = self._items(meta)
        wide = meta[b"pitm"][0] > 0
        (primary,) = struct.unpack_from(">I" if wide else ">H", meta[b"pitm"], 4)
        if primary not in items:
            raise self._format.broken("its primary image is missing")
        width, height = self._size(items[primary])
        self._format.check_size(width, height)
        made_of = self._made_of(meta.get(b"iref"))
        coded = self._coded(primary, items, made_of)
        clear = [
            part
            for kind, item, of in made_of
            if kind == b"auxl" and primary in of and item in items and self._is_alpha(items[item])
            for part in self._coded(item, items, made_of)
        ]
        planes, passes = self._check(coded, width * height)
        alpha, more = self._check(clear, width * height)
        coded_bytes = sum(len(part) for item in coded for part in item.data)
        all_bytes = coded_bytes + sum(len(part) for item in clear for part in item.data)
        codec, pixels = self._codec, width * height
        drawn = codec.clear if clear else codec.grey if planes <= _GREY_PLANES else codec.colour
        ns = _NS + codec.ns_a_byte * all_bytes / pixels
        weight = Weight(0.0, drawn + planes + alpha, ns)
        orientation = self._orientation(items[primary])
        if codec.turns:
            width, height = self._shown(items[primary], width, height)
        return ImageFile(
            *(self._format, width, height, 1 if codec.turns else orientation, max(passes, more)),
            *(weight, coded_bytes, pixels // codec.most_pixels, [self._view]),
        )

    def _boxes(self, view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the kind and payload of each box."""
        return ((box.kind, box.payload) for box in boxes(view, self._count_box, self._format))

    def _count_box(self) -> None:
        self._boxes_left -= 1
        if self._boxes_left < 0:
            raise self._format.broken(f"the file has more than {_MOST_BOXES} boxes")

    def _items(self, meta: Mapping[bytes, memoryview]) -> Mapping[int, _Item]:
        kinds = {}
        info = meta[b"iinf"]
        for kind, box in self._boxes(info[8 if info[0] else 6 :]):
            if kind == b"infe" and box[0] >= 2:
                (number,) = struct.unpack_from(">I" if box[0] > 2 else ">H", box, 4)
                at = 10 if box[0] > 2 else 8
                kinds[number] = bytes(box[at : at + 4])
        if len(kinds) > _MOST_ITEMS:
            raise self._format.broken(f"it has {len(kinds)} items, more than {_MOST_ITEMS}")
        inner = dict(self._boxes(meta[b"iprp"]))
        if b"ipco" not in inner or b"ipma" not in inner:
            raise self._format.broken("its items have no property boxes")
        properties = list(self._boxes(inner[b"ipco"]))
        owned = dict(self._owned(inner[b"ipma"]))
        data = dict(self._data(meta[b"iloc"], meta.get(b"idat", self._view[:0])))
        return {
            number: _Item(
                kind,
                [properties[i - 1] for i in owned.get(number, ()) if 0 < i <= len(properties)],
                data.get(number, ()),
            )
            for number, kind in kinds.items()
        }

    def _owned(self, box: memoryview) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield each item's number, together with the numbers of the item's properties. Properties
        are numbered from 1."""
        version, wide = box[0], box[3] & 1
        (count,) = struct.unpack_from(">I", box, 4)
        self._expect(count)
        left, position = _MOST_PROPERTIES, 8
        for _ in range(count):
            (item,) = struct.unpack_from(">I" if version else ">H", box, position)
            position += 4 if version else 2
            number = box[position]
            left -= number
            if left < 0:
                raise self._format.broken(f"its items have more than {_MOST_PROPERTIES} properties")
            position += 1
            indices = struct.unpack_from(f">{number}{'H' if wide else 'B'}", box, position)
            position += number * (2 if wide else 1)
            yield item, [index & (0x7FFF if wide else 0x7F) for index in indices]

    def _data(
        self, box: memoryview, inside: memoryview
    ) -> Iterator[tuple[int, Sequence[memoryview]]]:
        """Yield each item's number, together with its coded bytes in one or more parts."""
        version = box[0]
        offset_bytes, length_bytes, base_bytes, index_bytes = (
            *divmod(box[4], 16),
            *divmod(box[5], 16),
        )
        index_bytes = index_bytes if version else 0
        (count,) = struct.unpack_from(">I" if version > 1 else ">H", box, 6)
        self._expect(count)
        position = 10 if version > 1 else 8

        def number(size: int) -> int:
            nonlocal position
            position += size
            if position > len(box):
                raise self._format.truncated()
            return int.from_bytes(box[position - size : position], "big")

        pieces = 0
        for _ in range(count):
            item = number(4 if version > 1 else 2)
            method = number(2) & 15 if version else 0
            number(2)  # the file that has it: this one
            base, extents = number(base_bytes), number(2)
            pieces += extents
            self._expect(pieces)
            source = inside if method else self._view
            found = []
            for _ in range(extents):
                number(index_bytes)
                begin, size = base + number(offset_bytes), number(length_bytes)
                if begin + size > len(source):
                    raise self._format.truncated()
                found.append(source[begin : begin + size if length_bytes else len(source)])
            yield item, found

    def _expect(self, items: int) -> None:
        if items > _MOST_ITEMS:
            raise self._format.broken(f"it lists {items} items, more than {_MOST_ITEMS}")

    def _made_of(self, box: memoryview | None) -> Sequence[tuple[bytes, int, Sequence[int]]]:
        """Return the references between items. Each reference has a kind, the number of the item
        that refers, and the numbers of the items to which it refers."""
        found = []
        total = 0
        form, size = (">I", 4) if box is not None and box[0] else (">H", 2)
        for kind, part in self._boxes(box[4:]) if box is not None else ():
            (item,) = struct.unpack_from(form, part)
            (count,) = struct.unpack_from(">H", part, size)
            total += count
            self._expect(total)
            to = struct.unpack_from(f">{count}{form[1]}", part, size + 2)
            found.append((kind, item, to))
        return found

    def _coded(
        self,
        number: int,
        items: Mapping[int, _Item],
        made_of: Sequence[tuple[bytes, int, Sequence[int]]],
    ) -> Sequence[_Item]:
        """Return the items that contain the coded bytes of an image: the image's own item, or the
        tiles of its grid."""
        if number not in items:
            raise self._format.broken("it refers to an item that is missing")
        if items[number].kind == self._codec.kind:
            return [items[number]]
        if items[number].kind != _GRID:
            kind = items[number].kind.decode("latin-1")
            raise self._format.broken(f"its image has the unsupported type {kind!r}")
        tiles = [to for kind, item, to in made_of if kind == b"dimg" and item == number]
        found = [tile for group in tiles for tile in group]
        if any(tile not in items or items[tile].kind != self._codec.kind for tile in found):
            raise self._format.broken("its tiles do not all have the same format")
        return [items[tile] for tile in found]

    def _size(self, item: _Item) -> tuple[int, int]:
        for kind, box in item.properties:
            if kind == b"ispe":
                width, height = struct.unpack_from(">II", box, 4)
                return width, height
        raise self._format.broken("its width or height is 0 or missing")

    def _shown(self, item: _Item, width: int, height: int) -> tuple[int, int]:
        """Return the size at which an image is shown, after the crop and the rotations that the
        file lists. The crop removes the pixels with which the encoder filled up the last blocks."""
        for kind, box in item.properties:
            if kind == b"clap":
                across, by_x, down, by_y = struct.unpack_from(">4I", box)
                if not (by_x and by_y and across // by_x <= width and down // by_y <= height):
                    raise self._format.broken("its crop is larger than the image")
                width, height = across // by_x, down // by_y
            elif kind == b"irot" and box[0] & 1:
                width, height = height, width
        self._format.check_size(width, height)
        return width, height

    def _orientation(self, item: _Item) -> int:
        """Return the EXIF orientation that has the same effect as the image's rotations and
        mirrorings, applied in the order of the file."""
        # The stored position of each corner, clockwise from the top left.
        turned: tuple[int, ...] = (0, 1, 2, 3)
        for kind, box in item.properties:
            if kind == b"irot":  # anticlockwise
                turns = box[0] & 3
                turned = turned[turns:] + turned[:turns]
            elif kind == b"imir":
                a, b, c, d = turned
                turned = (b, a, d, c) if box[0] & 1 else (d, c, b, a)
        return _ORIENTATION_OF[turned]

    def _is_alpha(self, item: _Item) -> bool:
        return any(
            kind == b"auxC" and bytes(box[4:]).startswith(_ALPHAS) for kind, box in item.properties
        )

    def _check(self, items: Sequence[_Item], pixels: int) -> tuple[float, int]:
        """Return the bytes per pixel of the decoder's planes, and how many passes the decoder makes
        over them. Raises ImageError if a tile is larger than its header says, or if the tiles
        together are much larger than the image."""
        planes, passes, total = 0.0, 0, 0
        for item in items:
            width, height = self._size(item)
            setup = next((box for kind, box in item.properties if kind == self._codec.setup), None)
            if setup is None:
                raise self._format.broken("it has no configuration for the decoder")
            coded = (_av1 if self._codec.kind == _AV1 else _hevc)(setup, b"".join(item.data))
            if coded is None:
                raise self._format.broken("its coded data are not a single still image")
            padded = [(side + _BLOCK - 1) // _BLOCK * _BLOCK for side in (width, height)]
            if coded.width > padded[0] or coded.height > padded[1]:
                raise self._format.broken(
                    f"its header says {width}×{height} pixels, but its coded image has"
                    f" {coded.width}×{coded.height}"
                )
            total += padded[0] * padded[1]
            planes, passes = max(planes, coded.planes), max(passes, coded.passes)
        if total > 2 * pixels + _FREE_PIXELS:
            raise self._format.broken("its tiles are larger than the image")
        return planes, passes


class _Coded(NamedTuple):
    width: int
    height: int
    planes: float  # bytes per pixel
    passes: int


class _Bits:
    """Reads numbers that have any number of bits."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, bits: int) -> int:
        """Return the next bits as a number. Raises IndexError at the end."""
        self._left -= bits
        if self._left < 0:
            raise IndexError("there are no more bits")
        return (self._value >> self._left) & ((1 << bits) - 1)

    def golomb(self) -> int:
        """Return the next number in Exp-Golomb code (H.265 9.2)."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)


def _av1(setup: memoryview, data: bytes) -> _Coded | None:
    """Return the frame size and the bytes per pixel that AV1 data state. Return None if they do not
    contain exactly one frame."""
    found: tuple[int, int, float] | None = None
    frames = 0
    for kind, unit in (*_av1_units(bytes(setup[4:])), *_av1_units(data)):
        if kind == _SEQUENCE:
            size = _av1_size(_Bits(unit[:_SEQUENCE_BYTES]))
            if size is None or found not in (None, size):
                return None
            found = size
        frames += kind in (_FRAME_HEADER, _FRAME)
        if frames > 1:
            return None
    return _Coded(*found, passes=1) if found and frames == 1 else None


def _av1_units(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and payload of each unit (AV1 5.3)."""
    position = 0
    for _ in range(_MOST_UNITS):
        if position >= len(data):
            return
        head = data[position]
        position += 2 if head & 4 else 1
        size = len(data) - position
        if head & 2:
            size = shift = 0
            while True:  # LEB128
                byte = data[position]
                position += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80 or shift > 28:
                    break
        yield head >> 3 & 15, data[position : position + size]
        position += size
    raise IndexError("there are more blocks of coded data (OBUs) than in any image")


def _av1_size(bits: _Bits) -> tuple[int, int, float] | None:
    """Return the largest frame size in an AV1 sequence header, and the bytes per pixel of its
    planes (AV1 5.5). Return None if the sequence cannot be a still image."""
    profile = bits.take(3)
    bits.take(1)
    still = bits.take(1)
    if still:
        bits.take(5)
    else:
        if bits.take(1):  # times
            return None
        delayed = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if delayed and bits.take(1):
                bits.take(4)
    across, down = bits.take(4) + 1, bits.take(4) + 1
    width, height = bits.take(across) + 1, bits.take(down) + 1
    if not still and bits.take(1):
        bits.take(7)
    bits.take(3)
    if not still:
        bits.take(4)
        if ordered := bits.take(1):
            bits.take(2)
        if (bits.take(1) or bits.take(1)) and not bits.take(1):
            bits.take(1)
        bits.take(3 * ordered)
    bits.take(3)
    deep = bits.take(1)
    if profile == 2 and deep:
        bits.take(1)
    grey = profile != 1 and bits.take(1)
    planes = 1.0 if grey else 1.5 if profile == 0 else 3.0
    return width, height, planes * (1 + deep)


def _hevc(setup: memoryview, data: bytes) -> _Coded | None:
    """Return the image size and the bytes per pixel that HEVC data state. Return None if they do
    not contain exactly one image."""
    sizes, position = set[tuple[int, int, float]](), 23
    for _ in range(setup[22]):
        (count,) = struct.unpack_from(">H", setup, position + 1)
        position += 3
        for _ in range(count):
            (length,) = struct.unpack_from(">H", setup, position)
            unit = bytes(setup[position + 2 : position + 2 + length])
            position += 2 + length
            if unit[0] >> 1 & 63 == _SPS:
                sizes.add(_hevc_size(_Bits(unit[2:_SEQUENCE_BYTES].replace(b"\0\0\3", b"\0\0"))))
    images = slices = position = 0
    prefix = (setup[21] & 3) + 1
    for _ in range(_MOST_UNITS):
        if position >= len(data):
            break
        begin = position + prefix
        kind = data[begin] >> 1 & 63
        if kind == _SPS:
            return None
        if kind < _FIRST_SLICES:
            slices += 1
            images += data[begin + 2] >> 7
        position = begin + int.from_bytes(data[position:begin], "big")
    else:
        return None
    return _Coded(*sizes.pop(), passes=slices) if len(sizes) == images == 1 else None


def _hevc_size(bits: _Bits) -> tuple[int, int, float]:
    """Return the width and height in an HEVC sequence header, and the bytes per pixel of its planes
    (H.265 7.3.2.2.1)."""
    bits.take(4)
    layers = bits.take(3)
    bits.take(1 + 88 + 8)
    present = [(bits.take(1), bits.take(1)) for _ in range(layers)]
    if layers:
        bits.take(2 * (8 - layers))
    for profile, level in present:
        bits.take(88 * profile + 8 * level)
    bits.golomb()
    if (chroma := bits.golomb()) == 3:  # its colours apart
        bits.take(1)
    width, height = bits.golomb(), bits.golomb()
    if bits.take(1):
        for _ in range(4):
            bits.golomb()
    deep = bits.golomb() > 0 or bits.golomb() > 0
    # Deeper samples are also converted to 8 bits.
    return width, height, {0: 1.0, 1: 1.5}.get(chroma, 3.0) * (3 if deep else 1)
