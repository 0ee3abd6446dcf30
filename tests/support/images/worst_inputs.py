"""Lists, for each kind of data that clients send, the inputs that are known to cost parsers most.

`test_parser_budget` measures the cost of the inputs, and `test_worst_inputs` measures their effect
on a server. Add each new expensive input here.
"""

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping

from PIL import Image

from tests.support.images.files import (
    encode,
    jpeg_segment,
    jpeg_with,
    noise,
    png,
    png_chunk,
    png_with,
    scene,
    webp_with,
)

MB = 1_000_000

# --- JSON of the V2 protocol, for a model of 224×224×3 pixels ------------------------------------


def infer_json(data: bytes, datatype: bytes = b"UINT8", shape: bytes = b"[1,224,224,3]") -> bytes:
    """Return an inference request whose tensor has this `data`."""
    return (b'{"inputs":[{"name":"image","datatype":"%b","shape":%b,"data":%b}]}') % (
        datatype,
        shape,
        data,
    )


# This input once stopped the service for a minute, because a string in a list was read as a list of
# letters.
NESTED_STRING = infer_json(b"[" + b"[" * 190 + b"]" * 190 + b',"' + b"a" * MB + b'"]')

PIXELS = json.dumps([[[[7, 8, 255]] * 224] * 224]).encode()

JSON: Mapping[str, bytes] = {
    "a string in nested lists": NESTED_STRING,
    "a string in a flat list": infer_json(b'["' + b"a" * MB + b'"]'),
    "many short strings": infer_json(b"[" + b",".join([b'"a"'] * (MB // 4)) + b"]"),
    "lists without end": infer_json(b"[" * (MB // 2) + b"]" * (MB // 2)),
    "deep lists again and again": infer_json(b",".join([b"[" * 100 + b"]" * 100] * 5000)),
    "empty lists": infer_json(b"[" + b",".join([b"[]"] * (MB // 3)) + b"]"),
    "lists of one number": infer_json(b"[" + b",".join([b"[1]"] * (MB // 4)) + b"]"),
    "pixels, nested": infer_json(PIXELS),
    "too many numbers": infer_json(b"[" + b",".join([b"7"] * (MB // 2)) + b"]"),
    "one long number": infer_json(b"[" + b"9" * MB + b"]"),
    "one long fraction": infer_json(b"[0." + b"9" * MB + b"]"),
    "escapes": infer_json(b'["' + rb"A" * (MB // 6) + b'"]'),
    "white space": infer_json(b"[" + b" " * MB + b"7]"),
    "many keys": b"{" + b",".join(b'"%d":0' % n for n in range(MB // 9)) + b"}",
    "one key many times": b"{" + b",".join([b'"a":0'] * (MB // 6)) + b"}",
    "a long shape": infer_json(b"[]", shape=b"[" + b",".join([b"1"] * (MB // 2)) + b"]"),
    "many inputs": b'{"inputs":[' + b",".join([b'{"name":"a","datatype":"b","shape":[]}'] * 20_000)
    + b"]}",
    "base64": infer_json(b'["' + base64.b64encode(bytes(MB)) + b'"]', b"BYTES", b"[1]"),
    "no base64": infer_json(b'["' + b"=" * MB + b'"]', b"BYTES", b"[1]"),
    "base64 of nothing": infer_json(
        b"[" + b",".join([b'""'] * (MB // 3)) + b"]", b"BYTES", b"[4]"
    ),
}  # fmt: skip

# --- forms, with the boundary b ------------------------------------------------------------------

BOUNDARY = b"b"
_DISPOSITION = b'Content-Disposition: form-data; name="file"'
_FILE = _DISPOSITION + b"\r\n"


def form(part: bytes, times: int = 1) -> bytes:
    """Return a form without its end. The form consists of `times` copies of `part`."""
    return (b"--b\r\n" + part) * times


FORMS: Mapping[str, bytes] = {
    "many parts": form(_FILE + b"\r\nx\r\n", 20_000),
    "many headers": form(b"a:b\r\n" * 200_000),
    "carriage returns": form(_FILE + b"\r\n" + b"\r" * MB),
    "line ends": form(_FILE + b"\r\n" + b"\r\n" * (MB // 2)),
    "almost boundaries": form(_FILE + b"\r\n" + b"\r\n--" * (MB // 4)),
    "other boundaries": form(_FILE + b"\r\n" + b"\r\n--a" * (MB // 5)),
    "a long header": form(b"a:" + b"b" * MB),
    "a long name of a header": form(b"a" * MB),
    "quotes": form(b'Content-Disposition: form-data; name="' + b'\\"' * (MB // 2) + b'"\r\n\r\n'),
    "parameters": form(_DISPOSITION + b";" * 3900 + b"\r\n\r\nx\r\n", 128),
    "few parameters": form(_DISPOSITION + b";" * 15 + b"\r\n\r\nx\r\n", 20_000),
    "a preamble": b"x" * MB,
    "a file": form(_FILE + b"\r\n" + b"z" * MB + b"\r\n--b--\r\n"),
}

# --- what stands in a head; 64 kB at the most -----------------------------------------------------

_HEAD = 65_000

QUERIES: Mapping[str, bytes] = {
    "separators": b"&" * _HEAD,
    "parameters": b"a=b&" * (_HEAD // 4),
    "one parameter many times": b"top_k=1&" * (_HEAD // 8),
    "escapes": b"%41" * (_HEAD // 3),
    "almost escapes": b"top_k=" + b"%" * _HEAD,
    "digits": b"top_k=" + b"9" * _HEAD,
}

CONTENT_TYPES: Mapping[str, bytes] = {
    "separators": b"multipart/form-data" + b";" * _HEAD,
    "parameters": b"multipart/form-data" + b";a=b" * (_HEAD // 4),
    "quotes": b'multipart/form-data;boundary="' + b'\\"' * (_HEAD // 2),
    "continuations": b"multipart/form-data" + b"".join(b";a*%d=b" % n for n in range(_HEAD // 8)),
}

ACCEPTED: Mapping[str, bytes] = {
    "separators": b"," * _HEAD,
    "codings": b"gzip;q=1," * (_HEAD // 9),
}

HEADS: Mapping[str, bytes] = {
    "short headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * (_HEAD // 5),
    "long headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"a:" + b"b" * 640 + b"\r\n") * 95,
    "a long target": b"GET /" + b"%41" * (_HEAD // 3) + b" HTTP/1.1\r\nHost: a\r\n",
    "an endless header": b"GET / HTTP/1.1\r\nHost: a\r\nx:" + b"y" * _HEAD,
    "an endless name": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"y" * _HEAD,
}

# --- image files, whose headers are read --------------------------------------------------------

_JPEG, _PNG = encode(scene(40, 30), "JPEG"), encode(scene(40, 30), "PNG")
_EXIF = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 5400) + bytes(12 * 5400)
_EMPTY = 65_000

HEADERS: Mapping[str, bytes] = {
    "JPEG, empty segments": jpeg_with(_JPEG, jpeg_segment(0xFE, b"") * _EMPTY),
    "JPEG, padding": jpeg_with(_JPEG, b"\xff" * MB),
    "JPEG, markers": jpeg_with(_JPEG, b"\xff\xd0" * (MB // 2)),
    "JPEG, stray bytes": jpeg_with(_JPEG, bytes(MB)),
    "JPEG, EXIF again and again": jpeg_with(_JPEG, jpeg_segment(0xE1, _EXIF) * 16),
    "JPEG, scans": encode(scene(40, 30), "JPEG", progressive=True) + b"\xff\xda" * (MB // 2),
    "PNG, empty chunks": png_with(_PNG, png_chunk(b"teXt", b"") * _EMPTY),
    "PNG, empty data": png(40, 30, 8, 2, png_chunk(b"IDAT", b"") * _EMPTY),
    "PNG, EXIF again and again": png_with(_PNG, png_chunk(b"eXIf", _EXIF[6:]) * 16),
    "WebP, empty chunks": webp_with(
        encode(scene(40, 30), "WebP"), (b"NONE" + bytes(4)) * _EMPTY
    ),
}  # fmt: skip

# --- image files, which are decoded: 25 megapixels from few bytes, from many, or from none -------

SIDE = 5000


def _flat(*colour: int, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (SIDE, SIDE), colour or (1, 2, 3))


def _png_of_rows(row: bytes, depth: int) -> bytes:
    """Return a PNG whose rows, of a filter's number and RGBA, are all the same.

    100 rows are compressed, without what came before, and repeated: that takes a twentieth of the
    time.
    """
    deep = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    rows, count = row * 100, SIDE // 100
    packed = deep.compress(rows) + deep.flush(zlib.Z_FULL_FLUSH)
    checksum = 1
    for _ in range(count):
        checksum = zlib.adler32(rows, checksum)
    pixels = b"\x78\xda" + packed * count + b"\x03\0" + struct.pack(">I", checksum)
    return png(SIDE, SIDE, depth, 6, png_chunk(b"IDAT", pixels))


def _lying() -> bytes:
    data = bytearray(encode(noise(320, 240), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", SIDE, SIDE)
    return bytes(data)


IMAGES: Mapping[str, Callable[[], bytes]] = {
    "WebP, lossless, transparent": lambda: encode(
        _flat(1, 2, 3, 4, mode="RGBA"), "WebP", lossless=True, method=4
    ),
    "WebP, lossy": lambda: encode(_flat(), "WebP", method=0),
    "PNG, transparent": lambda: _png_of_rows(b"\1\1\2\3\4" + bytes(4 * (SIDE - 1)), 8),
    "PNG, 16 bits": lambda: _png_of_rows(bytes(1 + 8 * SIDE), 16),
    "JPEG, progressive CMYK": lambda: encode(
        _flat(254, 253, 252, 0, mode="CMYK"), "JPEG", progressive=True
    ),
    "JPEG, progressive": lambda: encode(_flat(), "JPEG", progressive=True, quality=5),
    "JPEG that says more than it has": _lying,
}
"""Functions that create the files that need the most memory or time to decode. Most take a second
each."""


# --- whole bodies that are compressed ------------------------------------------------------------

COMPRESSED: Mapping[str, Callable[[], bytes]] = {
    "nested JSON of 8 MB in 8 kB": lambda: gzip.compress(
        infer_json(b"[" + b"[" * 190 + b"]" * 190 + b',"' + b"a" * (8 * MB) + b'"]'), 9
    ),
    "8 MB of inputs in 24 kB": lambda: gzip.compress(
        b'{"inputs":[' + b'{"name":"","datatype":"","shape":[]},' * 220_000 + b"{}]}", 9
    ),
    "20 MB of zeros": lambda: gzip.compress(bytes(20 * MB), 9),
}
"""Functions that create compressed bodies. Each takes about a second."""
