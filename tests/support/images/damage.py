"""Damages image files, as an attacker or a bad cable would. Contains strategies for hypothesis."""

import struct
from collections.abc import Callable, Sequence
from functools import cache

from hypothesis import strategies as st

from service.images.file import ImageFormat
from tests.support.images.files import (
    ORIENTATION,
    encode,
    exif,
    heic,
    jpeg_segment,
    png_checksum,
    png_chunk,
    scene,
)

# The most bytes of a damaged file: hostile files are small, and damaging long files is slow.
MAX_BYTES = 200_000

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# Numbers near which lengths, counts and offsets are often handled wrongly.
_EDGES = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_WIDE_EDGES = (*_EDGES, 0x10000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF4, 0xFFFFFFFF)

_PNG_KINDS = (
    *(b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL", b"fcTL", b"fdAT", b"eXIf", b"iCCP"),
    *(b"zTXt", b"iTXt", b"tEXt", b"gAMA", b"cHRM", b"sBIT", b"pHYs", b"\0\0\0\0", b"xxxx"),
)
_WEBP_KINDS = (
    *(b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"EXIF", b"ICCP", b"XMP ", b"xxxx"),
)


@cache
def good_files(width: int = 60, height: int = 45) -> Sequence[tuple[str, bytes]]:
    """Return (format, file) for every kind of file that the decoders support."""
    picture = scene(width, height)
    grey, cmyk = picture.convert("L"), picture.convert("CMYK")
    clear = picture.convert("RGBA")
    clear.putalpha(grey)
    return (
        ("JPEG", encode(picture, "JPEG")),
        ("JPEG", encode(picture, "JPEG", progressive=True, exif=exif(6))),
        ("JPEG", encode(picture, "JPEG", subsampling=0, quality=95, restart_marker_rows=1)),
        ("JPEG", encode(grey, "JPEG", optimize=True)),
        ("JPEG", encode(cmyk, "JPEG", subsampling=0)),
        ("JPEG", encode(cmyk, "JPEG", progressive=True)),
        ("PNG", encode(picture, "PNG", exif=exif(3))),
        ("PNG", encode(picture.quantize(16), "PNG", transparency=3)),
        ("PNG", encode(clear, "PNG")),
        ("PNG", encode(clear.convert("LA"), "PNG")),
        ("PNG", encode(picture.convert("1"), "PNG")),
        ("PNG", encode(picture.convert("I;16"), "PNG")),
        ("PNG", encode(grey, "PNG", transparency=9)),
        ("WebP", encode(picture, "WebP")),
        ("WebP", encode(picture, "WebP", lossless=True)),
        ("WebP", encode(clear, "WebP", exif=exif(8))),
        ("WebP", encode(clear, "WebP", lossless=True, exact=True)),
        ("TIFF", encode(picture, "TIFF", exif=exif(5))),
        ("TIFF", encode(picture.quantize(16), "TIFF", compression="tiff_lzw")),
        ("TIFF", encode(clear, "TIFF", compression="tiff_adobe_deflate")),
        ("AVIF", encode(picture, "AVIF", exif=exif(6))),
        ("AVIF", encode(clear, "AVIF")),
        *([("HEIC", heic("scenergba"))] if ImageFormat.HEIF.is_read else []),
    )


# --- damage to bytes, whatever they mean ---------------------------------------------------------

Damage = Callable[[bytes], bytes]


def _cut(place: float) -> Damage:
    return lambda data: data[: int(place * len(data))]


def _flip(place: float, bit: int) -> Damage:
    def flip(data: bytes) -> bytes:
        hurt = bytearray(data)
        if hurt:
            hurt[int(place * len(hurt))] ^= 1 << bit
        return bytes(hurt)

    return flip


def _write(place: float, number: int, form: str) -> Damage:
    def write(data: bytes) -> bytes:
        size = struct.calcsize(form)
        start = int(place * len(data))
        return data[:start] + struct.pack(form, number % 256**size) + data[start + size :]

    return write


def _lose(place: float, length: int) -> Damage:
    def lose(data: bytes) -> bytes:
        start = int(place * len(data))
        return data[:start] + data[start + length :]

    return lose


def _repeat(place: float, length: int, times: int) -> Damage:
    def repeat(data: bytes) -> bytes:
        start = int(place * len(data))
        return data[:start] + data[start : start + length] * times + data[start + length :]

    return repeat


def _splice(place: float, other: bytes, source: float, length: int, *, over: bool) -> Damage:
    def splice(data: bytes) -> bytes:
        start, begin = int(place * len(data)), int(source * len(other))
        piece = other[begin : begin + length]
        return data[:start] + piece + data[start + (len(piece) if over else 0) :]

    return splice


def _places() -> st.SearchStrategy[float]:
    """Draw a position anywhere, preferably in headers."""
    whole = st.floats(0, 1, exclude_max=True)
    return whole | whole.map(lambda place: place**4)


def _byte_damage() -> st.SearchStrategy[Damage]:
    lengths = st.integers(1, 40) | st.integers(1, 5000)
    others = st.sampled_from([data for _, data in good_files()])
    places = _places()
    forms = st.sampled_from(["B", ">H", "<H", ">I", "<I"])
    return st.one_of(
        st.builds(_cut, places),
        st.builds(_flip, places, st.integers(0, 7)),
        st.builds(_write, places, st.sampled_from(_WIDE_EDGES) | st.integers(0, 2**32), forms),
        st.builds(_lose, places, lengths),
        st.builds(_repeat, places, lengths, st.sampled_from([2, 3, 50, 2000])),
        st.builds(_splice, places, others, places, lengths, over=st.booleans()),
    )


# --- damage to segments and chunks; lengths and checksums stay right -----------------------------


def pieces(kind: str, data: bytes) -> list[bytes]:
    """Return a file's segments or chunks, each with its header, and the rest of the file. A file in
    another format is one piece."""
    if kind not in ("JPEG", "PNG", "WebP"):
        return [data]
    found = []
    position = {"JPEG": 2, "PNG": 8, "WebP": 12}[kind]
    while position < len(data):
        if kind == "JPEG":
            last = data[position + 1 : position + 2] == b"\xda"
            length = 2 + int.from_bytes(data[position + 2 : position + 4], "big")
            length = len(data) if last else length
        elif kind == "PNG":
            length = 12 + int.from_bytes(data[position : position + 4], "big")
        else:
            size = int.from_bytes(data[position + 4 : position + 8], "little")
            length = 8 + size + (size & 1)
        found.append(data[position : position + length])
        position += length
    return found


def whole(kind: str, parts: Sequence[bytes]) -> bytes:
    """Return a file that consists of these segments or chunks, with the right beginning and
    checksums."""
    if kind == "JPEG":
        return b"\xff\xd8" + b"".join(parts)
    if kind == "PNG":
        checked = [part[:-4] + png_checksum(part[4:-4]) for part in parts if len(part) >= 12]
        return PNG_SIGNATURE + b"".join(checked)
    if kind != "WebP":
        return b"".join(parts)
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _payloads() -> st.SearchStrategy[bytes]:
    return st.binary(max_size=60) | _strange_exif() | st.binary(max_size=8).map(lambda b: b * 1000)


@st.composite
def _strange_exif(draw: st.DrawFn) -> bytes:
    """Draw an almost valid TIFF directory with unusual offsets, counts, types and orientations."""
    order, mark = draw(st.sampled_from([("<", b"II*\0"), (">", b"MM\0*"), (">", b"II*\0")]))
    edges = st.sampled_from(_WIDE_EDGES)
    entries = draw(
        st.lists(st.tuples(st.sampled_from([ORIENTATION, 0x010F, 0x8769]), edges, edges, edges))
    )
    count = draw(st.just(len(entries)) | st.sampled_from(_EDGES))
    offset = draw(st.just(8) | edges)
    directory = struct.pack(order + "H", count) + b"".join(
        struct.pack(order + "HHIH2x", tag, kind % 2**16, number, value % 2**16)
        for tag, kind, number, value in entries
    )
    prefix = draw(st.sampled_from([b"Exif\0\0", b""]))
    return prefix + mark + struct.pack(order + "I", offset) + directory


def _new_piece(kind: str) -> st.SearchStrategy[bytes]:
    if kind == "JPEG":
        return st.builds(jpeg_segment, st.integers(0xC0, 0xFE), _payloads())
    if kind == "PNG":
        return st.builds(png_chunk, st.sampled_from(_PNG_KINDS), _payloads())

    def chunk(name: bytes, payload: bytes) -> bytes:
        return name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) & 1)

    return st.builds(chunk, st.sampled_from(_WEBP_KINDS), _payloads())


@st.composite
def rearranged(draw: st.DrawFn, kind: str, data: bytes) -> bytes:
    """Draw the file with segments that are lost, repeated, moved, added, or damaged inside."""
    parts = pieces(kind, data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(parts) - 1)))
        how = draw(st.sampled_from(["lose", "repeat", "move", "add", "add", "hurt", "hurt"]))
        if how == "add" or not parts:
            many = draw(st.sampled_from([1, 1, 1, 30, 3000]))
            parts[at:at] = [draw(_new_piece(kind))] * many
        elif how == "lose":
            del parts[at]
        elif how == "repeat":
            parts[at:at] = [parts[at]] * draw(st.sampled_from([1, 2, 200]))
        elif how == "move":
            parts.insert(draw(st.integers(0, len(parts) - 1)), parts.pop(at))
        else:
            parts[at] = draw(_byte_damage())(parts[at])
    return whole(kind, parts)


@st.composite
def resized(draw: st.DrawFn, kind: str, data: bytes) -> bytes:
    """Draw the file with another size in its header. Nothing else changes."""
    sides = st.sampled_from(_WIDE_EDGES) | st.integers(1, 3000)
    width, height = draw(sides), draw(sides)
    parts = pieces(kind, data)
    for number, part in enumerate(parts):
        if kind == "PNG" and part[4:8] == b"IHDR":
            parts[number] = part[:8] + struct.pack(">II", width, height) + part[16:]
        elif kind == "JPEG" and part[1] in (0xC0, 0xC1, 0xC2):
            size = struct.pack(">HH", height % 2**16, width % 2**16)
            parts[number] = part[:5] + size + part[9:]
        elif kind == "WebP" and part[:4] == b"VP8X":
            size = b"".join((side % 2**24).to_bytes(3, "little") for side in (width, height))
            parts[number] = part[:12] + size + part[18:]
        elif kind == "WebP" and part[:4] == b"VP8 ":
            size = struct.pack("<HH", width % 2**16, height % 2**16)
            parts[number] = part[:14] + size + part[18:]
        elif kind == "WebP" and part[:4] == b"VP8L":
            bits = width % 2**14 | height % 2**14 << 14
            parts[number] = part[:9] + struct.pack("<I", bits) + part[13:]
    return whole(kind, parts)


@st.composite
def damaged(draw: st.DrawFn, files: Sequence[tuple[str, bytes]] | None = None) -> bytes:
    """Draw a damaged version of one of the files (by default `good_files`)."""
    kind, data = draw(st.sampled_from(files or good_files()))
    way = draw(st.sampled_from(["bytes", "pieces", "size", "both"]))
    if way == "size":
        data = draw(resized(kind, data))
    if way in ("pieces", "both"):
        data = draw(rearranged(kind, data))
    if way in ("bytes", "both"):
        for damage in draw(st.lists(_byte_damage(), min_size=1, max_size=5)):
            data = damage(data)
    return data[:MAX_BYTES] if files is None else data


def pretended() -> st.SearchStrategy[bytes]:
    """Draw any bytes. They may follow the beginning of an image format."""
    beginnings = st.sampled_from(
        [
            *(b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\0\x11\x08\0\x10\0\x10\x03"),
            *(PNG_SIGNATURE, PNG_SIGNATURE + b"\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10\x08\x02\0\0\0"),
            *(b"II*\0\x08\0\0\0\x0a\0", b"\0\0\0\x10ftypavif\0\0\0\0\0\0\0\0\0\0\1\0meta"),
            *(b"RIFF\xff\0\0\0WEBPVP8 ", b"RIFF\x20\0\0\0WEBPVP8L", b"RIFF\x20\0\0\0WEBPVP8X"),
        ]
    )
    return st.builds(lambda start, rest: start + rest, beginnings, st.binary(max_size=300))
