"""JPEG headers: the files that a device decodes, and the reasons for refusing others."""

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kernels.device.device import SOURCE_ROOT
from kernels.device.signature import fields
from kernels.image.decoded import PLACE_BYTES
from kernels.image.jpeg import (
    JpegFile,
    JpegImage,
    Reason,
    UnsuitableError,
    read_jpeg,
)
from kernels.image.place import Kind
from kernels.problems.interpolation import Interpolation
from tests.support.cases.resize import decoded
from tests.support.kernels.jpegs import parts_of

PIXELS = np.random.default_rng(3).integers(0, 256, (37, 50, 3), np.uint8)


def file(pixels: np.ndarray = PIXELS, **options: Any) -> bytes:
    """Return a JPEG that Pillow writes."""
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "JPEG", **options)
    return written.getvalue()


def read(data: bytes) -> JpegFile:
    """Return the contents of a file's headers."""
    return read_jpeg(parts_of(data))


def segment(data: bytes, marker: int) -> tuple[int, int]:
    """Return the begin and end of the first segment with a marker."""
    at = data.index(bytes([0xFF, marker]))
    return at, at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def changed(data: bytes, marker: int, offset: int, value: int) -> bytes:
    """Return the file with one byte of a segment's body replaced."""
    at = segment(data, marker)[0] + 4 + offset
    return data[:at] + bytes([value]) + data[at + 1 :]


def inserted(data: bytes, marker: int, body: bytes) -> bytes:
    """Return the file with a segment before its scan."""
    at = segment(data, 0xDA)[0]
    new = bytes([0xFF, marker]) + (2 + len(body)).to_bytes(2, "big") + body
    return data[:at] + new + data[at:]


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_headers_say_what_a_device_has_to_know(subsampling: int) -> None:
    data = file(subsampling=subsampling, restart_marker_blocks=3, quality=60)
    jpeg = read(data)
    assert (jpeg.width, jpeg.height, jpeg.components) == (50, 37, 3)
    assert jpeg.luma == ((1, 1), (2, 1), (2, 2))[subsampling]
    assert jpeg.interval == 3
    assert jpeg.transform
    assert data.endswith(bytes(jpeg.scan) + b"\xff\xd9")
    with Image.open(io.BytesIO(data)) as image:
        quantization = [bytes(table) for table in image.quantization.values()]  # type: ignore[attr-defined]
    natural = np.array([*jpeg.quantization[0]])
    assert sorted(natural) == sorted(quantization[0])
    assert jpeg.quantization[1] == jpeg.quantization[2] != jpeg.quantization[0]
    assert [sum(code[:16]) for code in jpeg.codes] == [len(code) - 16 for code in jpeg.codes]
    assert jpeg.scaled(1) == (7, 5)


def test_grey_has_one_component() -> None:
    jpeg = read(file(PIXELS[..., 0]))
    assert (jpeg.components, jpeg.luma, len(jpeg.codes)) == (1, (1, 1), 2)


def test_colours_are_transformed_unless_the_file_says_they_are_rgb() -> None:
    assert not read(file(keep_rgb=True)).transform
    plain = file()
    start, end = segment(plain, 0xE0)
    bare = plain[:start] + plain[end:]
    assert read(bare).transform
    for number, expected in ((0, False), (1, True)):
        adobe = inserted(bare, 0xEE, b"Adobe" + bytes(6) + bytes([number]))
        assert read(adobe).transform is expected
        with_both = inserted(plain, 0xEE, b"Adobe" + bytes(6) + bytes([number]))
        assert read(with_both).transform


def _cmyk() -> bytes:
    written = io.BytesIO()
    Image.fromarray(PIXELS).convert("CMYK").save(written, "JPEG")
    return written.getvalue()


BASELINE = file()
DHT, DQT, SOF, SOS = 0xC4, 0xDB, 0xC0, 0xDA

UNSUITABLE: dict[str, tuple[Callable[[], bytes], Reason]] = {
    "progressive": (partial(file, progressive=True), Reason.PROGRESSIVE),
    "of four components": (_cmyk, Reason.COMPONENTS),
    "of 12 bits": (lambda: changed(BASELINE, SOF, 0, 12), Reason.RARE),
    "lossless": (lambda: BASELINE.replace(b"\xff\xc0", b"\xff\xc3"), Reason.RARE),
    "of rare sampling": (lambda: changed(BASELINE, SOF, 7, 0x41), Reason.SAMPLING),
    "of sampling 0": (lambda: changed(BASELINE, SOF, 7, 0x20), Reason.SAMPLING),
    "with chroma of more samples": (lambda: changed(BASELINE, SOF, 10, 0x21), Reason.SAMPLING),
    "with a scan of one component": (lambda: changed(BASELINE, SOS, 0, 1), Reason.SCANS),
    "with some coefficients": (lambda: changed(BASELINE, SOS, 8, 5), Reason.SCANS),
    "with components in another order": (
        lambda: changed(changed(BASELINE, SOS, 1, 2), SOS, 3, 1),
        Reason.COMPONENTS,
    ),
    "with a component twice": (
        lambda: changed(changed(BASELINE, SOF, 9, 1), SOS, 3, 1),
        Reason.COMPONENTS,
    ),
    "with no such quantization": (lambda: changed(BASELINE, SOF, 8, 3), Reason.TABLE),
    "with no such codes": (lambda: changed(BASELINE, SOS, 2, 0x30), Reason.TABLE),
    "with quantization of 16 bits": (lambda: changed(BASELINE, DQT, 0, 0x10), Reason.TABLE),
    "with quantization table 4": (lambda: changed(BASELINE, DQT, 0, 4), Reason.TABLE),
    "with part of a quantization table": (
        lambda: inserted(BASELINE, DQT, bytes(64)),
        Reason.TABLE,
    ),
    "with more codes than there are": (lambda: changed(BASELINE, DHT, 1, 2), Reason.TABLE),
    "with a code of all ones": (
        lambda: inserted(BASELINE, DHT, b"\0\2" + bytes(15) + b"\0\1"),
        Reason.TABLE,
    ),
    "with DC of 16 bits": (
        lambda: inserted(BASELINE, DHT, b"\0\1" + bytes(15) + b"\x10"),
        Reason.TABLE,
    ),
    "with codes of class 2": (
        lambda: inserted(BASELINE, DHT, b"\x20\1" + bytes(15) + b"\1"),
        Reason.TABLE,
    ),
    "with values missing": (lambda: inserted(BASELINE, DHT, b"\0\3" + bytes(15)), Reason.TABLE),
    "with two frames": (
        lambda: inserted(BASELINE, SOF, BASELINE[slice(*segment(BASELINE, SOF))][4:]),
        Reason.SEGMENT,
    ),
    "with a frame of a wrong length": (lambda: changed(BASELINE, SOF, 5, 1), Reason.SEGMENT),
    "with a restart interval of a byte": (
        lambda: inserted(BASELINE, 0xDD, b"\1"),
        Reason.SEGMENT,
    ),
    "with a segment of a rare kind": (lambda: inserted(BASELINE, 0xCC, b"\0\0"), Reason.SEGMENT),
    "of unknown colours": (
        lambda: inserted(BASELINE.replace(b"JFIF", b"KFIF"), 0xEE, b"Adobe" + bytes(6) + b"\2"),
        Reason.SEGMENT,
    ),
    "without a frame": (lambda: BASELINE.replace(b"\xff\xc0", b"\xff\xe1"), Reason.SEGMENT),
    "of no height": (
        lambda: changed(changed(BASELINE, SOF, 1, 0), SOF, 2, 0),
        Reason.SEGMENT,
    ),
    "with bytes between segments": (
        lambda: BASELINE[:2] + b"\0" + BASELINE[2:],
        Reason.SEGMENT,
    ),
    "without an end": (lambda: BASELINE[:-2], Reason.TRUNCATED),
    "with a scan too long": (
        lambda: BASELINE[:-2] + bytes(2**20) + b"\xff\xd9",
        Reason.LARGE,
    ),
}


@pytest.mark.parametrize("what", UNSUITABLE)
def test_a_file_that_is_not_for_a_device_says_why(what: str) -> None:
    make, reason = UNSUITABLE[what]
    with pytest.raises(UnsuitableError, match="the GPU cannot decode this JPEG: ") as refused:
        read(make())
    assert refused.value.reason is reason


def test_every_reason_has_a_file() -> None:
    assert {reason for _, reason in UNSUITABLE.values()} == set(Reason)


def image(jpeg: JpegFile, eighths: int = 8) -> JpegImage:
    """Return a file that becomes 12×9 pixels."""
    width, height = jpeg.scaled(eighths)
    resize = replace(decoded((1, 1), Interpolation.BILINEAR).resize, box=(0.0, 0.0, width, height))
    return JpegImage(jpeg, eighths, resize)


def test_an_entry_has_what_its_file_says_and_then_the_scan() -> None:
    jpeg = read(file(subsampling=2, restart_marker_blocks=3))
    place = np.full(PLACE_BYTES, 0xA7, np.uint8)
    image(jpeg).write(place)
    kind, used, pixels, at = place[:16].view(np.int32)
    assert kind == Kind.JPEG
    assert at % 16 == pixels % 16 == used % 16 == 0
    assert bytes(place[pixels : pixels + len(jpeg.scan)]) == jpeg.scan
    assert used - pixels - len(jpeg.scan) < 16
    assert np.all(place[used:] == 0xA7)
    declared = fields(SOURCE_ROOT / "jpeg.cuh", "Jpeg")
    sizes = [(12 if field.type == "Divisor" else 4) * (field.length or 0) for field in declared]
    numbers = place[at : at + sum(sizes)].view(np.int32)
    assert numbers[0] == len(jpeg.scan)
    assert numbers[1] == 4  # 4×3 MCUs
    assert numbers[2] == 3 * 6
    assert numbers[3] == 12 * 6
    tables = bytes(place[at + sum(sizes) : pixels])
    assert tables.startswith(b"".join(jpeg.quantization))
    codes = [code.ljust(272, b"\0") for code in jpeg.codes]
    assert tables[256 : 256 + 6 * 272] == b"".join(codes)


@pytest.mark.parametrize("luma", [(1, 1), (2, 2)])
def test_the_largest_image_of_the_longest_scan_has_room(luma: tuple[int, int]) -> None:
    jpeg = replace(
        read(BASELINE), width=2000, height=2000, luma=luma, scan=memoryview(bytes(2**20))
    )
    large = image(jpeg, 4)
    large.write(np.zeros(PLACE_BYTES, np.uint8))
    with pytest.raises(UnsuitableError, match="2001×2000 pixels, more than 4000000") as refused:
        image(replace(jpeg, width=2001), 4)
    assert refused.value.reason is Reason.LARGE
    with pytest.raises(UnsuitableError, match="2000×2000×3 is too large"):
        image(jpeg, 8)
    with pytest.raises(UnsuitableError, match=r"\d+ restart intervals, more than 4096"):
        image(replace(jpeg, interval=1), 4)
