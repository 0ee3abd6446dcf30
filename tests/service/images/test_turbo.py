"""One call of libjpeg-turbo returns the same bits as Pillow, or leaves the file to Pillow."""

import io
from collections.abc import Callable

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image, features

from service.errors import ImageError
from service.images import turbo
from service.images.prepare import ImageLimits, prepare_image
from tests.service.images.test_prepare import RGB

simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg is not built for this platform")

SIZES = [(640, 480), (641, 479), (65, 49), (16, 8), (7, 7), (1, 40), (5, 300), (700, 8)]
SUBSAMPLING = ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "grey"]
SHRINKS = [1, 2, 4, 8]


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return squares of one colour with sharp edges, which show how chroma is interpolated."""
    small = np.random.default_rng(seed).integers(0, 256, (-(-height // 5), -(-width // 5), 3))
    pixels = small.astype(np.uint8).repeat(5, axis=0).repeat(5, axis=1)[:height, :width]
    return Image.fromarray(np.ascontiguousarray(pixels))


def encoded(image: Image.Image, subsampling: str = "4:2:0", **options: object) -> bytes:
    stream = io.BytesIO()
    if subsampling == "grey":
        image, subsampling = image.convert("L"), "4:4:4"
    image.save(stream, "JPEG", subsampling=subsampling, **options)
    return stream.getvalue()


def by_pillow(data: bytes, shrink: int) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.draft(None, (max(1, image.width // shrink), max(1, image.height // shrink)))
    image.load()
    return image


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", SUBSAMPLING)
@pytest.mark.parametrize("size", SIZES)
def test_every_scale_and_subsampling_has_pillows_bits(
    size: tuple[int, int], subsampling: str, progressive: bool
) -> None:
    for quality in (40, 95):
        data = encoded(drawn(*size), subsampling, quality=quality, progressive=progressive)
        for shrink in SHRINKS:
            if min(size) < shrink:
                continue
            expected = by_pillow(data, shrink)
            image = turbo.decode(data, size, shrink)
            assert image is not None
            assert (image.mode, image.size) == (expected.mode, expected.size)
            assert image.tobytes() == expected.tobytes()


def test_restart_markers_change_no_bit() -> None:
    data = encoded(drawn(200, 120), restart_marker_blocks=3)
    image = turbo.decode(data, (200, 120), 1)
    assert image is not None
    assert image.tobytes() == by_pillow(data, 1).tobytes()


def test_both_are_the_versions_that_were_compared() -> None:
    assert features.check_feature("libjpeg_turbo")
    assert simplejpeg.__version__ == "1.9.0"
    assert PIL.__version__ == "13.0.0"


def cmyk() -> bytes:
    return encoded(drawn(64, 48).convert("CMYK"))


def rgb() -> bytes:
    return encoded(drawn(64, 48), "4:4:4", keep_rgb=True)


def cut() -> bytes:
    return encoded(drawn(64, 48))[:-40]


def warned_of() -> bytes:
    data = encoded(drawn(64, 48))
    return data[:-2] + b"\0\0\0" + data[-2:]  # bytes that belong to nothing, ahead of its end


@pytest.mark.parametrize("make", [cmyk, rgb, cut])
def test_what_is_not_plain_is_left_to_pillow(make: Callable[[], bytes]) -> None:
    assert turbo.decode(make(), (64, 48), 1) is None


def test_another_size_than_the_header_said_and_a_large_file_are_left_to_pillow() -> None:
    assert turbo.decode(encoded(drawn(64, 48)), (48, 64), 1) is None
    assert turbo.decode(encoded(drawn(1100, 1000)), (1100, 1000), 1) is None


def pixels_of(data: bytes) -> NDArray[np.uint8] | str:
    try:
        return prepare_image(data, RGB, ImageLimits()).run()
    except ImageError as error:
        return str(error)


@pytest.mark.parametrize("make", [cmyk, rgb, cut, warned_of, lambda: encoded(drawn(64, 48))])
def test_an_image_is_the_same_with_the_library_and_without(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = pixels_of(make())
    monkeypatch.setattr(turbo, "_library", None)
    theirs = pixels_of(make())
    assert type(ours) is type(theirs)
    assert np.array_equal(ours, theirs)
