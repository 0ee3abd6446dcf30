"""AVIF and HEIC: photographs are decoded correctly. Files that declare less than they contain are
refused before a decoder reads them."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from service.errors import ImageError, ServiceError, UnsupportedMediaTypeError
from service.images.file import ImageFormat
from service.images.heif import parse_heic
from service.images.prepare import ImageLimits, parse_image_file, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.images.files import encode, exif, heic, scene

LIMITS = ImageLimits()
IMAGE = scene(64, 64)
CLEAR = IMAGE.convert("RGBA")
CLEAR.putalpha(IMAGE.convert("L"))

NEEDS_HEIF = pytest.mark.skipif(
    not ImageFormat.HEIF.is_read, reason="pi-heif, of the extra `heif`, is not installed"
)


def drawn(data: bytes) -> NDArray[np.int64]:
    return prepare_image(data, RGB, LIMITS).run().astype(np.int64)


def difference(one: bytes, other: bytes) -> float:
    return float(np.abs(drawn(one) - drawn(other)).mean())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_avif_is_turned_upright_once(orientation: int) -> None:
    turned = {
        kind: encode(IMAGE, kind, exif=exif(orientation), quality=100) for kind in ("AVIF", "JPEG")
    }
    assert parse_image_file(turned["AVIF"]).orientation == orientation
    assert difference(turned["AVIF"], turned["JPEG"]) < 5


@pytest.mark.parametrize("image", [IMAGE, CLEAR, IMAGE.convert("L")], ids=["RGB", "RGBA", "L"])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
def test_an_avif_is_drawn_as_the_image_is(image: Image.Image, subsampling: str) -> None:
    avif = encode(image, "AVIF", quality=100, subsampling=subsampling)
    assert difference(avif, encode(image, "PNG")) < 4


@NEEDS_HEIF
@pytest.mark.parametrize(
    ("name", "image"), [("scene", IMAGE), ("scenergba", CLEAR), ("odd", scene(61, 45))]
)
def test_a_heic_is_drawn_as_the_image_is(name: str, image: Image.Image) -> None:
    assert difference(heic(name), encode(image, "PNG")) < 6


@NEEDS_HEIF
@pytest.mark.parametrize("turns", range(4))
def test_a_heic_is_turned_upright_once(turns: int) -> None:
    data = heic()
    # The box of colours becomes that of turns, of the same number of bytes.
    at = data.index(b"colr") - 4
    (size,) = struct.unpack_from(">I", data, at)
    turn = struct.pack(">I4sB", size, b"irot", turns).ljust(size, b"\0")
    turned = data[:at] + turn + data[at + size :]
    upright = encode(IMAGE.rotate(90 * turns, expand=True), "PNG")
    assert difference(turned, upright) < 6


@pytest.mark.skipif(ImageFormat.HEIF.is_read, reason="pi-heif is installed")
def test_a_heic_without_its_plugin_names_the_extra() -> None:
    with pytest.raises(UnsupportedMediaTypeError, match="extra `heif`"):
        parse_image_file(heic())


def test_a_heic_header_is_read_without_a_decoder() -> None:
    file = parse_heic(heic("scenergba"))
    assert (file.width, file.height, file.orientation, file.scans) == (64, 64, 1, 1)
    assert file.weight.drawn_bytes > parse_heic(heic()).weight.drawn_bytes


AVIF = encode(IMAGE, "AVIF")


def patched(data: bytes, find: bytes, value: bytes, later: int = 0) -> bytes:
    """Return a file with the bytes `value`, `later` bytes after the begin of the first occurrence
    of `find`."""
    at = data.index(find) + later
    return data[:at] + value + data[at + len(value) :]


def many_frames(data: bytes) -> bytes:
    """Return an AVIF that contains its frame twice."""
    at = data.index(b"mdat") + 4
    image = data[at:]
    units = image[:2], image[2 : 4 + image[3]], image[4 + image[3] :]
    longer = b"".join((*units, units[2]))
    grown = patched(data, struct.pack(">II", at, len(image)), struct.pack(">II", at, len(longer)))
    return grown[: at - 8] + struct.pack(">I4s", 8 + len(longer), b"mdat") + longer


SMALL = struct.pack(">II", 16, 16)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: AVIF[:100], ImageError, "truncated"),
        (lambda: AVIF[:-40], ImageError, "truncated"),
        (lambda: patched(AVIF, b"meta", b"free"), ImageError, "has no `meta` box"),
        (lambda: patched(AVIF, b"iloc", b"free"), ImageError, "no `iloc` box"),
        (lambda: patched(AVIF, b"pitm", b"\7", 9), ImageError, "image is missing"),
        (lambda: patched(AVIF, b"ispe", b"free"), ImageError, "width or height"),
        (lambda: patched(AVIF, b"ispe", bytes(8), 8), ImageError, "width or height"),
        # The decoder would allocate what the image codes, which is more than its header says.
        (
            lambda: patched(encode(scene(640, 480), "AVIF"), b"ispe", SMALL, 8),
            ImageError,
            "says 16×16 pixels, but its coded image has 640×480",
        ),
        (
            lambda: patched(heic("grey"), b"ispe", SMALL, 8),
            ImageError,
            "says 16×16 pixels, but its coded image has 256×256",
        ),
        (lambda: many_frames(AVIF), ImageError, "not a single still image"),
        (lambda: patched(AVIF, b"av01", b"jpeg"), ImageError, "'jpeg'"),
        (lambda: patched(AVIF, b"ftyp", b"avis", 4)[:36] + b"moov" + AVIF[40:],
         UnsupportedMediaTypeError, "animated AVIF"),
    ],
)  # fmt: skip
def test_what_codes_other_than_it_says_is_refused(
    make: Callable[[], bytes], error: type[ServiceError], says: str
) -> None:
    data = make()
    with pytest.raises(error, match=says):
        (parse_heic if data[8:12] == b"heic" else parse_image_file)(data)


def test_an_animation_is_refused() -> None:
    animation = encode(IMAGE, "AVIF", save_all=True, append_images=[scene(64, 64, 1)])
    with pytest.raises(UnsupportedMediaTypeError, match="animated AVIF"):
        parse_image_file(animation)
