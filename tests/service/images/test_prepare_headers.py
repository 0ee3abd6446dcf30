"""The conversion of bytes to pixels: which files are refused, how fast, and with clear errors."""

import contextlib
import gzip
import io
import struct
import subprocess
import sys
import time
import zlib
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from service.errors import (
    ImageError,
    PayloadTooLargeError,
    ServiceError,
    UnsupportedMediaTypeError,
)
from service.images.file import ImageFormat
from service.images.jpeg import MAX_SCANS
from service.images.prepare import ImageLimits, parse_image_file, prepare_image
from tests.service.images.test_prepare import RGB, decode
from tests.support import PATIENCE_S
from tests.support.images.files import (
    encode,
    exif,
    jpeg_segment,
    jpeg_with,
    noise,
    png,
    png_chunk,
    png_with,
    scene,
    webp_with,
)
from tests.support.models.slowness import idle_core

FORMATS = [kind.value for kind in ImageFormat if kind is not ImageFormat.HEIF]  # not encoded here
SOF = b"\x08" + struct.pack(">HH", 9, 9)  # of a JPEG's frame header, up to its components
PNG = png(9, 9, 8, 2)
JPEG = encode(scene(9, 9), "JPEG")


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail if Pillow opens a file, because a limit must apply before."""

    def never(*args: object, **options: object) -> None:
        pytest.fail("a decoder was asked before the limits were held")

    monkeypatch.setattr(Image, "open", never)


def kept(data: bytes) -> bytes:
    """Return the part of a file that the decoder receives."""
    return b"".join(parse_image_file(data).parts)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of one grey tone, with 8 bits per pixel. It has only a kilobyte per
    megapixel."""
    squeeze = zlib.compressobj(9)
    row = bytes(width + 1)
    pixels = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    return png(width, height, 8, 0, png_chunk(b"IDAT", pixels))


@pytest.mark.usefixtures("no_decoder")
def test_a_decompression_bomb_is_refused_before_decoding_by_default() -> None:
    data = png(12_000, 12_000, 8, 2, png_chunk(b"IDAT", zlib.compress(bytes(17_000))))
    with pytest.raises(PayloadTooLargeError, match="144 megapixels; at most 25 megapixels"):
        decode(data)


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("image_format", FORMATS)
def test_pixels_over_the_limit_are_refused_before_decoding(image_format: str) -> None:
    data = encode(scene(40, 30), image_format)
    with pytest.raises(PayloadTooLargeError, match=r"0\.0012 megapixels; at most 0\.001199"):
        prepare_image(data, RGB, ImageLimits(max_pixels=1199)).run()


def test_a_picture_of_just_as_many_pixels_and_bytes_as_allowed_is_taken() -> None:
    data = encode(scene(40, 30), "PNG")
    limits = ImageLimits(max_pixels=1200, max_bytes=len(data))
    assert prepare_image(data, RGB, limits).run().shape == (224, 224, 3)


@pytest.mark.usefixtures("no_decoder")
def test_bytes_over_the_limit_are_refused_before_decoding() -> None:
    data = encode(scene(40, 30), "PNG")
    with pytest.raises(PayloadTooLargeError, match=f"{len(data)} bytes, more than the"):
        prepare_image(data, RGB, ImageLimits(max_bytes=len(data) - 1)).run()


@pytest.mark.usefixtures("no_decoder")
def test_a_side_that_no_other_format_could_have_is_refused() -> None:
    with pytest.raises(PayloadTooLargeError, match="65535 pixels a side"):
        decode(png(1, 65_536, 8, 2, png_chunk(b"IDAT", b"")))


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"II+\0\x08\0\0\0", "this is a BigTIFF"),
        (b"\0\0\0\x18ftypisom", "video or HEIF"),
        (b"%PDF-1.7", "this is a PDF"),
        (b64encode(JPEG), "an image in base64 .send it as JSON"),
        (b64encode(PNG), "an image in base64 .send it as JSON"),
        (b"data:image/webp;base64,UklGRg==", "an image in base64 .send it as JSON"),
        (gzip.compress(JPEG), "data compressed by gzip .which needs Content-Encoding: gzip"),
        (b"\x93NUMPY\x01\0v\0{'descr': '|u1'", "a NumPy array"),
        (b"8BPS\0\x01" + bytes(6), "a Photoshop file"),
        (b'{"image": "aGVsbG8="}', "looks like JSON"),
        (b"just\xfftext", "these 9 bytes are not an image in a known format; send a JPEG, PNG, "),
        (b"photos/cat.jpg\n", r"this is the text 'photos/cat.jpg'.* -F file=@cat.jpg, or --data-b"),
        (b"\x89PNG", "these 4 bytes are not an image"),
        (b"\0", "these 1 bytes are not an image"),
    ],
)
def test_other_formats_are_named_and_refused(data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedMediaTypeError, match=message):
        decode(data)


@pytest.mark.usefixtures("no_decoder")
def test_an_empty_body_is_refused_as_empty() -> None:
    with pytest.raises(ImageError, match="empty"):
        decode(b"")


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("image_format", ["PNG", "WebP"])
def test_animations_are_refused(image_format: str) -> None:
    frames = [scene(40, 30, seed) for seed in range(3)]
    data = encode(frames[0], image_format, save_all=True, append_images=frames[1:])
    with pytest.raises(UnsupportedMediaTypeError, match=f"animated {image_format}; send a still"):
        decode(data)


def test_an_animation_of_one_frame_is_a_still_picture() -> None:
    still = encode(scene(40, 30), "PNG")
    claims_one = png_with(still, png_chunk(b"acTL", bytes([0, 0, 0, 1, 0, 0, 0, 0])))
    assert (decode(claims_one) == decode(still)).all()


@pytest.mark.parametrize("image_format", FORMATS)
def test_a_file_cut_anywhere_is_refused_as_truncated_or_broken(image_format: str) -> None:
    options = {"exif": exif(6), "progressive": True} if image_format == "JPEG" else {}
    data = encode(scene(40, 30), image_format, **options)
    for length in range(12, len(data) - 1):
        with pytest.raises(ImageError, match=r"truncated|broken"):
            decode(data[:length])


@pytest.mark.parametrize("image_format", FORMATS)
def test_a_picture_followed_by_other_bytes_is_read(image_format: str) -> None:
    data = encode(scene(40, 30), image_format)
    assert (decode(data + b"trailing bytes") == decode(data)).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png(0, 9, 8, 2, png_chunk(b"IDAT", b"")), "width or height"),
        (png(9, 9, 8, 3, png_chunk(b"IDAT", zlib.compress(bytes(90)))), "palette is missing"),
        (png(9, 9, 7, 2, png_chunk(b"IDAT", b"")), "header is invalid"),
        (png(9, 9, 8, 1, png_chunk(b"IDAT", b"")), "header is invalid"),
        (png(9, 9, 8, 2), "cannot be decoded"),
        (
            png(100, 100, 8, 2, png_chunk(b"IDAT", bytes(20))),
            "bytes, but the file has 20",
        ),
        (png(9, 9, 8, 2, png_chunk(b"IDAT", b"no zlib")), "cannot be decoded"),
        (png(9, 9, 8, 2, png_chunk(b"IDAT", zlib.compress(bytes(9)))), "cannot be decoded"),
        (png(9, 9, 8, 2, png_chunk(b"tRNS", b"\0"), png_chunk(b"IDAT", b"")), "cannot be decoded"),
        (png(9, 9, 8, 2, png_chunk(b"IHDR", bytes(13))), "header is invalid"),
        (PNG[:8] + png_chunk(b"PLTE", bytes(9)) + PNG[8:], "does not begin with its header"),
        (b"\xff\xd8\xff\xd9\0\0", "ends before the first pixel"),
        (b"\xff\xd8" + jpeg_segment(0xC0, b"\x08"), "frame header is too short"),
        (b"\xff\xd8" + jpeg_segment(0xC0, SOF + b"\2\1\x11\0"), "header is invalid"),
        (b"\xff\xd8" + jpeg_segment(0xC0, SOF + b"\1\1\x51\0"), "header is invalid"),
        (b"\xff\xd8" + jpeg_segment(0xC0, SOF + b"\1\1\x11\0") * 2, "two frame headers"),
        (b"\xff\xd8" + jpeg_segment(0xDA, b""), "invalid length"),
        (b"\xff\xd8" + b"\xff\xe0\0\1", "invalid length"),
        (b"\xff\xd8" + jpeg_segment(0xDA, bytes(10)) + b"\xff\xd9", "width or height"),
        (b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0" + bytes(10), "header is invalid"),
        (b"RIFF\x04\0\0\0WEBP", "width or height"),
    ],
)
def test_files_that_make_no_sense_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        decode(data)


def test_a_wrong_checksum_is_refused() -> None:
    data = bytearray(encode(scene(40, 30), "PNG"))
    data[len(data) // 2] ^= 1
    with pytest.raises(ImageError, match="checksum of its IDAT chunk"):
        decode(bytes(data))


@pytest.mark.parametrize(
    "exif_data",
    [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"XX*\0" + bytes(40)],
)
def test_broken_exif_says_nothing(exif_data: bytes) -> None:
    plain = encode(scene(40, 30), "JPEG")
    data = jpeg_with(plain, jpeg_segment(0xE1, b"Exif\0\0" + exif_data))
    assert parse_image_file(data).orientation == 1
    assert (decode(data) == decode(plain)).all()


@pytest.mark.parametrize("orientation", [0, 9, 65_535])
def test_an_orientation_that_does_not_exist_says_nothing(orientation: int) -> None:
    data = encode(scene(40, 30), "PNG", exif=exif(orientation))
    assert parse_image_file(data).orientation == 1


@pytest.mark.parametrize("quality", [30, 95])
def test_a_header_of_more_pixels_than_the_data_can_be_is_refused(quality: int) -> None:
    data = bytearray(encode(noise(320, 240), "JPEG", quality=quality))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 7000, 3500)
    with pytest.raises(
        ImageError, match=r"3500×7000 pixels need at least \d+ bytes, but the file has"
    ):
        decode(bytes(data))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 2}])
def test_the_flattest_images_have_enough_data(mode: str, options: dict[str, Any]) -> None:
    for size in ((1, 1), (8, 8), (17, 9), (1000, 1000)):
        data = encode(Image.new(mode, size, 0), "JPEG", optimize=True, quality=1, **options)
        assert decode(data).shape == (224, 224, 3)
    flat = encode(Image.new("L", (3000, 3000), 0), "PNG", compress_level=9)
    assert decode(flat).shape == (224, 224, 3)


@pytest.mark.parametrize(
    ("marker", "precision", "message"),
    [
        (0xC9, 8, "unsupported kind .with arithmetic coding."),
        (0xCA, 8, "unsupported kind .with arithmetic coding."),
        (0xC3, 8, "unsupported kind .lossless or hierarchical."),
        (0xC1, 12, "12 bits per sample; save it with 8"),
    ],
)
def test_rare_jpegs_are_named(marker: int, precision: int, message: str) -> None:
    frame = bytes([precision]) + SOF[1:] + b"\1\1\x11\0"
    with pytest.raises(UnsupportedMediaTypeError, match=message):
        decode(b"\xff\xd8" + jpeg_segment(marker, frame))


# --- files made to keep a decoder busy -----------------------------------------------------------


def seconds(data: bytes) -> float:
    """Return the time of an idle core in which a file is decoded or refused."""
    with idle_core(time.process_time) as spent, contextlib.suppress(ServiceError):
        decode(data)
    return spent.seconds


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_compressed_text_and_profiles_are_never_unpacked(kind: bytes) -> None:
    plain = encode(scene(40, 30), "PNG")
    laden = png_chunk(kind, b"name\0\0" + zlib.compress(bytes(50_000_000), 9))
    data = png_with(plain, laden)
    assert (decode(data) == decode(plain)).all()
    assert len(kept(data)) <= len(plain)


def test_millions_of_empty_segments_are_refused_quickly() -> None:
    still = encode(scene(40, 30), "JPEG")
    for data in (
        jpeg_with(still, jpeg_segment(0xFE, b"") * 600_000),
        jpeg_with(still, b"\xff" * 600_000),
        jpeg_with(still, b"\xff\xd0" * 600_000),
        png_with(encode(scene(40, 30), "PNG"), png_chunk(b"teXt", b"") * 300_000),
        webp_with(encode(scene(40, 30), "WebP"), (b"NONE" + bytes(4)) * 300_000),
    ):
        with pytest.raises(ImageError, match="segments"):
            decode(data)
        assert seconds(data) < 1


def test_comments_profiles_and_exif_never_reach_the_decoder() -> None:
    # Pillow joins EXIF pieces in quadratic time and keeps every comment.
    plain = encode(scene(40, 30), "JPEG")
    pieces = jpeg_segment(0xE1, b"Exif\0\0" + bytes(3000)) * 6_000
    others = jpeg_segment(0xFE, b"comment") + jpeg_segment(0xE2, b"ICC_PROFILE\0\1\1profile")
    data = jpeg_with(plain, pieces, others)
    assert kept(data) == kept(plain)
    assert (decode(data) == decode(plain)).all()


def test_a_progressive_jpeg_of_thousands_of_scans_is_refused() -> None:
    data = encode(scene(400, 300), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff\xda", start + 1)
    assert len(decode(data)) == 224
    with pytest.raises(ImageError, match=f"it has more than {MAX_SCANS} scans"):
        decode(data[:start] + data[start:end] * (MAX_SCANS + 1) + data[end:])


def test_scans_times_pixels_are_bounded() -> None:
    data = encode(scene(400, 300), "JPEG", progressive=True)
    assert parse_image_file(data).scans == 10
    limits = ImageLimits(max_pixels=400 * 300, max_passes=10)
    assert prepare_image(data, RGB, limits).run().shape == (224, 224, 3)
    with pytest.raises(PayloadTooLargeError, match="pixels in 10 scans; at most 9 scans are"):
        prepare_image(data, RGB, replace(limits, max_passes=9)).run()


def test_nothing_is_printed_about_a_large_picture() -> None:
    # 90 megapixels: enough for Pillow's own warning, if it were left to warn.
    script = """
import sys
from service.images.prepare import ImageLimits, prepare_image
from service.errors import ServiceError
from tests.service.images.test_prepare import GREY
from tests.service.images.test_prepare_headers import bomb
data = bomb(9_500, 9_500)
assert prepare_image(data, GREY, ImageLimits(max_pixels=10**9)).run().shape == (224, 224, 1)
try:
    prepare_image(data, GREY, ImageLimits()).run()
except ServiceError:
    sys.exit(0)
sys.exit("not refused")
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


def webp_of_one_colour(side: int) -> bytes:
    """Return the shortest lossless WebP of a size. Each of its codes has only one symbol, so pixels
    take no bits."""
    fields = [(0x2F, 8), (side - 1, 14), (side - 1, 14), (0, 4), (0, 3)]  # no transform, no cache
    fields += [(1, 1), (0, 1), (0, 1), (0, 1)] * 5  # simple codes, of the symbol 0
    bits, length = 0, 0
    for value, width in fields:
        bits |= value << length
        length += width
    payload = bits.to_bytes(-(-length // 8), "little")
    payload += bytes(len(payload) % 2)
    chunk = b"VP8L" + len(payload).to_bytes(4, "little") + payload
    return b"RIFF" + (4 + len(chunk)).to_bytes(4, "little") + b"WEBP" + chunk


def test_a_webp_of_more_pixels_a_byte_than_encoders_reach_is_refused() -> None:
    small = webp_of_one_colour(500)
    assert Image.open(io.BytesIO(small)).convert("RGB").getextrema() == ((0, 0),) * 3, "valid"
    assert prepare_image(small, RGB, ImageLimits()).run().max() == 0
    data = webp_of_one_colour(5000)
    assert len(data) < 46
    with pytest.raises(
        ImageError, match="5000×5000 pixels need at least 762 bytes, but the file has 8;"
    ):
        prepare_image(data, RGB, ImageLimits())
    padded = webp_with(data, b"NONE" + (2000).to_bytes(4, "little") + bytes(2000))
    with pytest.raises(ImageError, match="at least 762 bytes"):
        prepare_image(padded, RGB, ImageLimits())


@pytest.mark.parametrize(
    "options", [{"lossless": True}, {"lossless": True, "quality": 100}, {"quality": 0}]
)
def test_a_blank_image_is_not(options: dict[str, int]) -> None:
    blank = Image.new("RGB", (4000, 4000), (250, 250, 250))
    prepare_image(encode(blank, "WebP", method=4, **options), RGB, ImageLimits())
