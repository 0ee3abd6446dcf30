"""Searches for bodies of megabytes that hold the GIL, built from a few bytes.

    kind, first, unit and last ── first + unit · n + last ── its reader ── the longest hold

A C parser that receives 8 MB blocks every other thread until it returns. The fuzzer's input
therefore describes a long body, and a heartbeat thread measures the hold during its reader.
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from models import OutputKind
from models.preprocessing import PRESETS, Preprocessing
from service.api.embeddings import EmbeddingsJson
from service.api.json_images import ImagesJson, read_json
from service.api.v2.parse import MAX_JSON_BYTES, parse_request
from service.errors import ServiceError
from service.grpc.infer_request import encoded_varint, infer_request, read_message
from service.hosting.model_info import ModelInfo
from service.http.body import images_of
from service.http.compression import compress, inflate
from service.images.clip import clips_of, prepare_clip
from service.images.prepare import ImageLimits, parse_image_file
from tests.support.images.files import encode, scene
from tests.support.service.heartbeat import longest_hold_s

# For how long one call may keep other threads from running, whatever its length.
MOST_HELD_S = 0.005

# A try is enough if it is within that. Others' work on the core only adds to what is seen.
TRIES = 40

BYTES = 8_000_000
_IMAGES = 8
_BETWEEN = b"\n\0\n"  # the parts of an input

# As many numbers as make 8 MB, of four bytes each and of eight.
INFO = ModelInfo(
    *("m", "1", (666_667, 1, 3), "scores", OutputKind.LOGITS, ()),
    tensor="x",
    tensor_shape=(1_000_001, 1, 1),
)


class HeldTooLongError(AssertionError):
    """Reports that a reader blocked other threads."""


class Long(NamedTuple):
    """A long body: its beginning, a repeated part, and its end."""

    first: bytes
    unit: bytes
    last: bytes = b""

    def body(self) -> bytes:
        """Return the whole body, no longer than clients may send."""
        times = BYTES // len(self.unit) if self.unit else 0
        return (self.first + self.unit * times + self.last)[:MAX_JSON_BYTES]


def _binary(body: bytes) -> object:
    """Return the JSON up to the first line end, followed by a binary tensor."""
    return parse_request(body, body.find(b"\n") + 1, INFO, _IMAGES)


def _protobuf(body: bytes) -> object:
    return infer_request(read_message(body), INFO, _IMAGES)


def _field(number: int, value: bytes, more: int = 0) -> bytes:
    """Return a field of a protobuf up to its last bytes, of which there are `more` than these."""
    return bytes([number << 3 | 2]) + encoded_varint(len(value) + more) + value


def _contents(datatype: bytes, name: bytes, shape: bytes, number: int, more: int) -> bytes:
    """Return a request up to the values of a field of its input's contents, which have `more`
    bytes."""
    contents = _field(5, _field(number, b"", more), more)
    inner = _field(1, name) + _field(2, datatype) + _field(3, shape) + contents
    return _field(5, inner, more)


_TRIPLE = b"\x03\xab\xd8\x28\x01\x03"  # the shape [3, 666667, 1, 3]
_FILE = _field(1, b"image") + _field(2, b"BYTES") + _field(3, b"\x01")

CLIPS: Preprocessing = replace(PRESETS["digits"].at(8, 8), frames=4)

READERS: Mapping[bytes, Callable[[bytes], object]] = {
    b"json": lambda body: parse_request(body, None, INFO, _IMAGES),
    b"binary": _binary,
    b"gzip": lambda body: inflate(body, "gzip", BYTES),  # what was compressed before
    b"stored": lambda body: inflate(body, "deflate", BYTES),
    b"form": lambda body: images_of(body, b"b", _IMAGES),
    b"image": parse_image_file,
    b"protobuf": _protobuf,
    b"embeddings": lambda body: read_json(body, EmbeddingsJson, INFO, "/v1/embeddings", _IMAGES),
    b"images": lambda body: read_json(body, ImagesJson, INFO, "/v1/classify", _IMAGES),
    b"clip": lambda body: prepare_clip(clips_of([body])[0], CLIPS, ImageLimits()),
}


_PIXELS = b'{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,666667,1,3],"data":'
_FILES = b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[%d],"data":'
_TENSOR = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,1000001,1,1],"data":'
_SIZE = b',"parameters":{"binary_data_size":%d}}]}'
_PART = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'

# What is known to have held it, or to come near.
KNOWN: Mapping[str, tuple[bytes, Long]] = {
    "inputs": (
        b"json",
        Long(b'{"inputs":[', b'{"name":"","datatype":"","shape":[]},', b"{}]}"),
    ),
    "parameters": (
        b"json",
        Long(b'{"inputs":[', b'{"name":"","datatype":"","shape":[],"parameters":{}},', b"{}]}"),
    ),
    "keys": (b"json", Long(b"{", b'"a":0,', b'"a":0}')),
    "lists": (b"json", Long(b'{"a":[', b"[],", b"[]]}")),
    "a shape": (b"json", Long(b'{"inputs":[{"shape":[', b"1,", b"1]}]}")),
    "an id": (b"json", Long(b'{"id":"', b"i", b'","inputs":[]}')),
    "an id of quotes": (b"json", Long(b'{"id":"', b'\\"', b'","inputs":[]}')),
    "an id of backslashes": (b"json", Long(b'{"id":"', b"\\\\", b'","inputs":[]}')),
    "white space": (b"json", Long(b'{"inputs":[', b" ", b"]}")),
    "white space in data": (b"json", Long(_PIXELS + b"[", b" ", b"7]}]}")),
    "whole numbers": (b"json", Long(_PIXELS + b"[", b"255,", b"7]}]}")),
    "nested numbers": (b"json", Long(_PIXELS + b"[[[", b"[7],", b"[7]]]]}]}")),
    "fractions": (b"json", Long(_TENSOR % 1 + b"[", b"-0.1234,", b"7]}]}")),
    "exponents": (b"json", Long(_TENSOR % 1 + b"[", b"1.25e-9,", b"7]}]}")),
    "a long number": (b"json", Long(_TENSOR % 1 + b"[", b"9", b"]}]}")),
    "nothing but brackets": (b"json", Long(_TENSOR % 1, b"[")),
    "base64": (b"json", Long(_FILES % 1 + b'["', b"QUJD", b'"]}]}')),
    "base64 with escapes": (b"json", Long(_FILES % 1 + b'["', b"QU\\/D", b'"]}]}')),
    "base64 of nothing": (b"json", Long(_FILES % 8 + b"[", b'"",', b'""]}]}')),
    "unknown objects": (b"json", Long(b'{"a":[', b"{},", b'{}],"inputs":[]}')),
    "binary tensors": (
        b"binary",
        Long(_TENSOR[:-8] % 2 + _SIZE % 8_000_008 + b"\n" + bytes(8), bytes(4)),
    ),
    "a binary file": (
        b"binary",
        Long(_FILES[:-8] % 1 + _SIZE % 8_000_004 + b"\n" + struct.pack("<I", 8_000_000), bytes(4)),
    ),
    "zeros, compressed": (b"gzip", Long(b"", b"\0")),
    "JSON, compressed": (b"gzip", Long(b'{"inputs":[', b'{"name":""},')),
    "stored blocks": (b"stored", Long(b"\x78\x01", b"\x00\x04\x00\xfb\xffabcd")),
    "line ends in a form": (b"form", Long(_PART, b"\r\n", b"\r\n--b--\r\n")),
    "almost boundaries": (b"form", Long(_PART, b"\r\n--", b"\r\n--b--\r\n")),
    "a header": (b"form", Long(b"--b\r\na:", b"b")),
    "a preamble": (b"form", Long(b"", b"x")),
    "inputs of a protobuf": (b"protobuf", Long(b"", b"\x2a\0")),
    "unknown fields": (b"protobuf", Long(b"", b"\x78\0")),
    "raw contents of nothing": (b"protobuf", Long(b"", b"\x3a\0")),
    "a long input": (b"protobuf", Long(_field(5, b"", BYTES), b"\x0a\0")),
    "contents of nothing": (
        b"protobuf",
        Long(_field(5, _FILE + _field(5, b"", BYTES), BYTES), b"\x42\0"),
    ),
    "small numbers": (
        b"protobuf",
        Long(_contents(b"UINT8", b"image", _TRIPLE, 4, BYTES + 3), b"\xff\x01\x07\x07", b"\7\7\7"),
    ),
    "other numbers": (
        b"protobuf",
        Long(_contents(b"UINT8", b"image", _TRIPLE, 4, BYTES + 3), b"\xff\xff\x07\x07", b"\7\7\7"),
    ),
    "floats": (
        b"protobuf",
        Long(_contents(b"FP32", b"x", b"\2\xc1\x84\x3d\1\1", 6, BYTES + 8), bytes(4), bytes(8)),
    ),
    "raw floats": (
        b"protobuf",
        Long(
            _field(5, _field(1, b"x") + _field(2, b"FP32") + _field(3, b"\2\xc1\x84\x3d\1\1"))
            + _field(7, b"", BYTES + 8),
            bytes(4),
            bytes(8),
        ),
    ),
    "an image in JSON": (b"embeddings", Long(b'{"input":"', b"QUJD", b'"}')),
    "a data URL": (b"images", Long(b'{"input":["data:image/jpeg;base64,', b"QU\\/D", b'"]}')),
    "almost line breaks": (b"images", Long(b'{"input":"#', b"n", b'"}')),
    "a user of escapes": (b"embeddings", Long(b'{"user":"', b"\\n", b'","input":"QUFBQQ=="}')),
    "white space before an image": (b"embeddings", Long(b'{"input":', b" ", b'"QUFB"}')),
    "images of nothing": (b"images", Long(b'{"input":[', b'"",', b'""]}')),
    "a GIF of sub-blocks": (
        b"clip",
        Long(b"GIF89a\1\0\1\0\0\0\0\x2c" + bytes(4) + b"\1\0\1\0\0\2", b"\1\0", b"\0\x3b"),
    ),
    "a GIF of frames": (
        b"clip",
        Long(
            b"GIF89a\1\0\1\0\0\0\0",
            b"\x2c" + bytes(4) + b"\1\0\1\0\0\2\1\0\0",
            b"\x3b",
        ),
    ),
    "almost marks of a PNG": (b"clip", Long(b"\x89PNG\r\n\x1a\n", b"acTc")),
    "a codec with a long name": (
        b"clip",
        Long(
            b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff\x16\x54\xae\x6b\x80"
            b"\xae\x80\x83\x81\1\x86\1" + BYTES.to_bytes(7, "big"),
            b"\0",
        ),
    ),
    "a ZIP of nothing": (b"clip", Long(b"PK\3\4", b"PK\5\6")),
    "an MP4 of boxes": (b"clip", Long(b"\0\0\0\x10ftypisom\0\0\0\0", b"\0\0\0\x08free")),
    "a WebM of elements": (b"clip", Long(b"\x1a\x45\xdf\xa3\x80", b"\xec\x80")),
    "an animated WebP": (
        b"clip",
        Long(
            b"RIFF\xff\x11\x7a\0WEBPVP8X\n\0\0\0\2" + bytes(9),
            b"ANMF\x10\0\0\0" + bytes(16),
        ),
    ),
    "a progressive JPEG": (
        b"image",
        Long(encode(scene(40, 30), "JPEG", progressive=True), b"\xff\xda\xff\0"),
    ),
    "a JPEG without an end": (
        b"image",
        Long(encode(scene(40, 30), "JPEG", progressive=True), b"\xff"),
    ),
}


def written(kind: bytes, long: Long) -> bytes:
    """Return the fuzzer's input from which `check` builds this body."""
    return _BETWEEN.join((kind, *long))


def check(data: bytes) -> None:
    """Raise HeldTooLongError if reading the body that is built from the input holds the GIL for
    long."""
    kind, *parts = data.split(_BETWEEN, 3)
    read = READERS.get(kind)
    if read is None or len(parts) < 2:
        return
    body = Long(*parts).body()
    if kind == b"gzip":
        body = compress(body, "gzip")

    def call() -> None:
        with suppress(ServiceError):
            read(body)

    held_s = longest_hold_s(call, TRIES, MOST_HELD_S)
    if held_s > MOST_HELD_S:
        raise HeldTooLongError(f"{kind.decode()}: held the lock for {held_s * 1e3:.1f} ms")
