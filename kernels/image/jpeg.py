"""Reads the headers of JPEG files that a device decodes, and writes the files in the layout of
kernels/src/jpeg.cuh.

    parts of a file ── read_jpeg ── JpegFile ── JpegImage ── write ── a place in a batch

A device decodes the files that cameras and most encoders write: baseline or extended Huffman
coding, 8 bits, one scan, and one or three components. Only the first component may have more
samples than the others. Any other file raises an `UnsuitableError` here or sets `Flag`s on the
device, and libjpeg then decodes it on the CPU.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag, unique
from itertools import accumulate
from math import ceil
from struct import unpack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.device.launch import struct
from kernels.image.decoded import JPEG_BYTES, Crop, Resize
from kernels.image.place import Bytes, DeferredImage, Kind

SOURCE = "jpeg.cuh"

MOST_SCAN_BYTES = 2**20
"""The most bytes of a scan in the file, from the scan's header to the end of the image."""

MOST_STORED_PIXELS = 4_000_000
"""The most pixels of an image as stored."""

MOST_SEGMENTS = 2**12
"""The most segments between restart markers."""

SCRATCH_BYTES = 34 * 2**20
"""The most bytes of device memory for decoding one image."""

ROUNDS = 8
"""The number of further rounds of decoding until the subsequences of a scan agree."""

SUBSEQUENCE_BYTES = 128

_HEAD_BYTES = 8912  # of a place's scratch memory: kernels/src/jpeg.cuh, Scratch
_RECORD_BYTES = 16
_ALIGNED = 16

_EOI = b"\xff\xd9"  # the end of the image, which no scan contains
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_DHT, _DQT, _DRI, _SOS = 0xC4, 0xDB, 0xDD, 0xDA
_APP0, _APP14 = 0xE0, 0xEE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, 0xCC}  # not JPG, DAC
_WHOLE_BLOCKS = b"\0\x3f\0"  # all 64 coefficients, in one scan

_TABLES = 4  # of a kind, at most
_STEPS = 64  # of a quantization table
_LENGTHS, _VALUES = 16, 256  # of Huffman codes
_SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2))

_ZIGZAG = bytes(
    y * 8 + diagonal - y if diagonal % 2 else (diagonal - y) * 8 + y
    for diagonal in range(15)
    for y in range(max(0, diagonal - 7), min(diagonal, 7) + 1)
)
"""The position in a block, row by row, of each coefficient in the order of the file."""


@unique
class Reason(Enum):
    """Lists the reasons why a device cannot decode a JPEG file. Each value is also the name of a
    counter in the metrics."""

    PROGRESSIVE = "progressive"
    RARE = "rare kind"  # arithmetic coding, lossless, hierarchical, 12 bits
    SCANS = "several scans"
    COMPONENTS = "components"  # neither 1 nor 3
    SAMPLING = "sampling"
    TABLE = "table"  # of 16 bits, broken or missing
    SEGMENT = "segment"  # of a rare kind or of a wrong length, or a contradiction
    TRUNCATED = "truncated"
    LARGE = "large"  # more bytes, pixels or restart intervals than a batch reserves memory for


class UnsuitableError(ValueError):
    """Raised for a JPEG file that a device cannot decode; `reason` says why."""

    def __init__(self, reason: Reason, what: str) -> None:
        """Create the error. `what` is a clause that describes the file's problem in the message."""
        super().__init__(f"the GPU cannot decode this JPEG: {what}")
        self.reason = reason


@unique
class Flag(IntFlag):
    """Lists the reasons why a device stops decoding a JPEG file, which the CPU then decodes. The
    numbers are the same as in jpeg.cuh."""

    BAD_CODE = 1
    BITS_MISSING = 2
    TOO_MANY_COEFFICIENTS = 4
    NOT_SYNCHRONISED = 8
    BITS_LEFT_OVER = 16
    OVERFLOW = 32  # of the 16 bits that libjpeg computes with
    MARKER = 64  # in the scan, but a restart marker where it is expected


@dataclass(frozen=True, slots=True)
class JpegFile:
    """Holds the scan of a JPEG file (the compressed pixels), and the data from the headers that a
    device needs to decode it."""

    width: int
    height: int
    luma: tuple[int, int]  # samples of the first component beside one of the others, across, down
    quantization: tuple[bytes, ...]  # of each component: 64 steps, in zigzag order
    codes: tuple[bytes, ...]  # of each component, DC and AC: how many of each length, values
    interval: int  # MCUs between restart markers; 0: there are none
    transform: bool  # YCbCr, not RGB
    scan: memoryview

    @property
    def components(self) -> int:
        """Return the number of components, 1 or 3."""
        return len(self.quantization)

    def scaled(self, eighths: int) -> tuple[int, int]:
        """Return the width and height of the image when decoded at `eighths` / 8 of its size.
        `eighths` is 8, 4, 2 or 1."""
        return ceil(self.width * eighths / 8), ceil(self.height * eighths / 8)


def read_jpeg(parts: Sequence[bytes | memoryview]) -> JpegFile:
    """Read the headers of a JPEG file.

    `parts` has the bytes of the file, without segments that do not affect pixels. The first part is
    the start-of-image marker, and each further part is a segment. The last part is the header of
    the scan and the rest of the file. Raises UnsuitableError.
    """
    headers = _Headers()
    for part in parts[1:-1]:
        headers.read(part[1], bytes(part[4:]))
    last = memoryview(parts[-1])
    if last[1] != _SOS or len(last) < 4:
        raise _truncated()
    (length,) = unpack(">H", last[2:4])
    return headers.file(bytes(last[4 : 2 + length]), last[2 + length :])


class _Headers:
    """Collects the data of the segments of one JPEG file."""

    def __init__(self) -> None:
        self.quantization: dict[int, bytes] = {}
        self.codes: dict[int, bytes] = {}  # by number, with 16 added for AC
        self.frame: bytes | None = None
        self.interval = 0
        self.jfif = False
        self.adobe: int | None = None

    def read(self, marker: int, body: bytes) -> None:
        """Add the data of a segment with this marker. Raises UnsuitableError."""
        if marker == _DQT:
            self._read_quantization(body)
        elif marker == _DHT:
            self._read_codes(body)
        elif marker == _DRI:
            if len(body) != 2:
                raise _wrong_length("a restart interval")
            self.interval = int.from_bytes(body, "big")
        elif marker == _APP0:
            self.jfif = self.jfif or (body.startswith(b"JFIF\0") and len(body) >= 14)
        elif marker == _APP14:
            if body.startswith(b"Adobe") and len(body) >= 12:
                self.adobe = body[11]
        elif marker in _FRAMES:
            self._read_frame(marker, body)
        else:
            raise UnsuitableError(Reason.SEGMENT, f"it has the unsupported segment FF {marker:02X}")

    def _read_quantization(self, body: bytes) -> None:
        if len(body) % (1 + _STEPS) or any(number >= _TABLES for number in body[:: 1 + _STEPS]):
            raise UnsuitableError(
                Reason.TABLE,
                "a quantization table needs a number from 0 to 3 and 64 entries of 8 bits",
            )
        for at in range(0, len(body), 1 + _STEPS):
            self.quantization[body[at]] = body[at + 1 : at + 1 + _STEPS]

    def _read_codes(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            counts = body[at + 1 : at + 1 + _LENGTHS]
            end = at + 1 + _LENGTHS + sum(counts)
            known = body[at] & 15 < _TABLES and body[at] >> 4 < 2
            if not known or len(counts) < _LENGTHS or sum(counts) > _VALUES or end > len(body):
                raise UnsuitableError(
                    Reason.TABLE, "a Huffman table has an unsupported number or a wrong length"
                )
            self.codes[body[at]] = body[at + 1 : end]
            at = end

    def _read_frame(self, marker: int, body: bytes) -> None:
        if self.frame is not None:
            raise UnsuitableError(Reason.SEGMENT, "it has two frame headers instead of one")
        if marker == _PROGRESSIVE:
            raise UnsuitableError(Reason.PROGRESSIVE, "it is progressive, not baseline")
        if marker not in (_BASELINE, _EXTENDED) or body[:1] != b"\x08":
            raise UnsuitableError(Reason.RARE, "it must be baseline or extended, with 8 bits")
        if len(body) < 6 or len(body) != 6 + 3 * body[5]:
            raise _wrong_length("the frame header")
        if body[5] not in (1, 3):
            raise UnsuitableError(Reason.COMPONENTS, f"it has {body[5]} components, not 1 or 3")
        self.frame = body

    def file(self, scan_header: bytes, rest: memoryview) -> JpegFile:
        """Return the JpegFile with the data of all segments, and the scan."""
        frame = self.frame
        if frame is None:
            raise UnsuitableError(Reason.SEGMENT, "its scan must follow a frame header")
        height, width = unpack(">HH", frame[1:5])
        if not width * height > 0:
            raise UnsuitableError(
                Reason.SEGMENT, f"its width and height must be at least 1, got {width}×{height}"
            )
        count, numbers = frame[5], frame[6::3]
        if scan_header[:1] != frame[5:6] or scan_header[-3:] != _WHOLE_BLOCKS:
            raise UnsuitableError(Reason.SCANS, "it has several scans instead of one")
        if len(scan_header) != 4 + 2 * count:
            raise _wrong_length("the scan's header")
        if len(set(numbers)) != count or scan_header[1:-3:2] != numbers:
            raise UnsuitableError(
                Reason.COMPONENTS, "its scan must have each component once, in the frame's order"
            )
        sampling = [divmod(factors, 16) for factors in frame[7::3]]
        if any(not 1 <= factor <= 4 for pair in sampling for factor in pair):
            raise UnsuitableError(Reason.SAMPLING, "each sampling factor must be from 1 to 4")
        luma, *chroma = sampling if count > 1 else [(1, 1)]
        if luma not in _SAMPLINGS or any(factors != (1, 1) for factors in chroma):
            raise UnsuitableError(
                Reason.SAMPLING, f"its components have the unsupported sampling factors {sampling}"
            )
        try:
            quantization = tuple(self.quantization[number] for number in frame[8::3])
            codes = tuple(
                self.codes[number]
                for byte in scan_header[2:-3:2]
                for number in (byte >> 4, 16 | byte & 15)
            )
        except KeyError:
            raise UnsuitableError(
                Reason.TABLE, "a quantization or Huffman table that it uses is missing"
            ) from None
        for place, code in enumerate(codes):
            _check_codes(code, dc=place % 2 == 0)
        return JpegFile(
            width=width,
            height=height,
            luma=luma,
            quantization=quantization,
            codes=codes,
            interval=self.interval,
            transform=self._transform(numbers),
            scan=rest[: _find_end(rest)],
        )

    def _transform(self, numbers: bytes) -> bool:
        if self.jfif or self.adobe is None:
            return self.jfif or numbers != b"RGB"
        if self.adobe > 1:
            raise UnsuitableError(
                Reason.SEGMENT, f"its Adobe colour transform must be 0 or 1, got {self.adobe}"
            )
        return self.adobe == 1


def _find_end(rest: memoryview) -> int:
    """Return the offset at which the scan ends and the end-of-image marker begins."""
    # bytes.find would take a copy of the file.
    if end := re.compile(_EOI).search(rest, 0, MOST_SCAN_BYTES + len(_EOI)):
        return end.start()
    if len(rest) > MOST_SCAN_BYTES:
        raise UnsuitableError(Reason.LARGE, f"its scan has more than {MOST_SCAN_BYTES} bytes")
    raise _truncated()


def _check_codes(table: bytes, *, dc: bool) -> None:
    """Raise UnsuitableError if a Huffman table has more codes of one length than are possible, or a
    code that consists only of ones, or a DC value of more than 15 bits."""
    code = 0
    for length, count in enumerate(table[:_LENGTHS], 1):
        code += count
        if count and code >= 1 << length:
            raise UnsuitableError(
                Reason.TABLE, f"a Huffman table has more codes of {length} bits than can exist"
            )
        code <<= 1
    if dc and any(value > 15 for value in table[_LENGTHS:]):
        raise UnsuitableError(
            Reason.TABLE, "DC values of a Huffman table must have at most 15 bits"
        )


def _wrong_length(what: str) -> UnsuitableError:
    return UnsuitableError(Reason.SEGMENT, f"the length of {what} does not match its contents")


def _truncated() -> UnsuitableError:
    return UnsuitableError(Reason.TRUNCATED, "it is truncated: its end marker is missing")


class JpegImage(DeferredImage):
    """Holds a JPEG file, and describes how a device decodes and resizes it. Conversion to a NumPy
    array gives black pixels, because only a device can decode the file."""

    kind = Kind.JPEG

    def __init__(self, file: JpegFile, eighths: int, resize: Resize) -> None:
        """Describe how to decode a file at `eighths` / 8 of its size, where `eighths` is 8, 4, 2 or
        1, and how to resize the decoded image. Raises UnsuitableError if the file does not fit into
        the memory that a batch reserves for one image."""
        try:
            crop = Crop(file.scaled(eighths), file.components, resize)
        except ValueError as error:
            raise UnsuitableError(Reason.LARGE, str(error)) from error
        if file.width * file.height > MOST_STORED_PIXELS:
            raise UnsuitableError(
                Reason.LARGE,
                f"it has {file.width}×{file.height} pixels, more than {MOST_STORED_PIXELS}",
            )
        self.file = file
        self.eighths = eighths
        self.resize = resize
        self.shape = resize.shape
        self.pixels_shape = crop.shape  # H×W×C of what is decoded
        described, self.scratch_bytes = _described(file, eighths, crop)
        if self.scratch_bytes > SCRATCH_BYTES:
            raise UnsuitableError(
                Reason.LARGE,
                f"it needs {self.scratch_bytes} bytes of scratch memory, more than {SCRATCH_BYTES}",
            )
        self._head = crop.head(len(file.scan), described)

    def write(self, place: Bytes) -> None:
        """Write the image's header (`Entry` of place.cuh) and its compressed data (the scan) to
        `place`, the image's memory in the batch."""
        begin, end = len(self._head), len(self._head) + len(self.file.scan)
        place[:begin] = self._head
        place[begin:end] = np.frombuffer(self.file.scan, np.uint8)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return black pixels, because NumPy cannot decode the file. The scores of these pixels are
        discarded."""
        return np.zeros(self.shape, dtype or self.dtype)


def _described(file: JpegFile, eighths: int, crop: Crop) -> tuple[bytes, int]:
    """Return the bytes that describe a JPEG file to a device (`Jpeg` of jpeg.cuh, and its tables).
    Also return the bytes of scratch memory that decoding needs."""
    most_h, most_v = file.luma
    sampling = [file.luma, *[(1, 1)] * (file.components - 1)]
    blocks = [(i, x, y) for i, (h, v) in enumerate(sampling) for y in range(v) for x in range(h)]
    across, down = ceil(file.width / 8 / most_h), ceil(file.height / 8 / most_v)
    mcus, per_mcu = across * down, len(blocks)
    interval = file.interval or mcus
    segments = ceil(mcus / interval)
    if segments > MOST_SEGMENTS:
        raise UnsuitableError(
            Reason.LARGE, f"it has {segments} restart intervals, more than {MOST_SEGMENTS}"
        )
    sides = [_side(factors, file.luma, eighths) for factors in sampling]
    components = [(h, v, side) for (h, v), side in zip(sampling, sides, strict=True)]
    slots = len(file.scan) // SUBSEQUENCE_BYTES + segments
    walkers = slots * per_mcu
    sizes = (
        _HEAD_BYTES,
        4 * (segments + 1),
        len(file.scan) + _ALIGNED,
        walkers,
        _RECORD_BYTES * walkers * (1 + ROUNDS),
        4 * slots,
        _RECORD_BYTES * slots,
        2 * _STEPS * mcus * per_mcu,
        *(mcus * h * v * side * side for h, v, side in components),
    )
    _, *places, end = accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)
    rows, columns = crop.rows, crop.columns
    described = struct(
        SOURCE,
        "Jpeg",
        scan_bytes=len(file.scan),
        segments=segments,
        interval=interval * per_mcu,
        blocks=mcus * per_mcu,
        per_mcu=per_mcu,
        across=across,
        component=_filled([component for component, _, _ in blocks], 6),
        column=_filled([x for _, x, _ in blocks], 6),
        row=_filled([y for _, _, y in blocks], 6),
        h=_filled([h for h, _, _ in components], 3),
        v=_filled([v for _, v, _ in components], 3),
        side=_filled(sides, 3),
        width=_filled([ceil(file.width * h * side / (8 * most_h)) for h, _, side in components], 3),
        height=_filled(
            [ceil(file.height * v * side / (8 * most_v)) for _, v, side in components], 3
        ),
        up_x=_filled([most_h * eighths // (h * side) for h, _, side in components], 3),
        up_y=_filled([most_v * eighths // (v * side) for _, v, side in components], 3),
        fancy=eighths > 1,
        transform=file.transform,
        components=file.components,
        crop_width=columns.stop - columns.start,
        crop_height=rows.stop - rows.start,
        left=columns.start,
        top=rows.start,
        walkers=walkers,
        starts=places[0],
        bytes=places[1],
        links=places[2],
        records=places[3],
        sources=places[4],
        sums=places[5],
        coefficients=places[6],
        plane=_filled(places[7:], 3),
    )
    tables = [*file.quantization, *[bytes(_STEPS)] * (3 - file.components), _ZIGZAG]
    tables += [code.ljust(_LENGTHS + _VALUES, b"\0") for code in file.codes]
    return b"".join([described, *tables]).ljust(JPEG_BYTES, b"\0"), end


def _side(factors: tuple[int, int], most: tuple[int, int], eighths: int) -> int:
    """Return the side of a component's block after decoding, in samples: 8, or less if the image is
    scaled down. Subsampled chroma is scaled down less than luma, so that it needs less
    upsampling."""
    side = eighths
    while side < 8 and all(
        most_of * eighths % (2 * side * factor) == 0
        for factor, most_of in zip(factors, most, strict=True)
    ):
        side *= 2
    return side


def _filled(numbers: Sequence[int], count: int) -> list[int]:
    return [*numbers, *[0] * (count - len(numbers))]
