"""The part of an image that a model sees, in the image's own coordinates, and maps drawn on it."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from models.preprocessing import PRESETS, CropMode, Preprocessing
from service.engine.lane import Cost
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from service.images.view import View, overlay, view_of
from tests.support.images.files import encode, exif

RGB = PRESETS["raw"].at(96, 96)
WAYS = {
    "crop": replace(RGB, resize=110),
    "oblong": replace(RGB, height=60, width=96, resize=104),
    "squash": replace(RGB, crop_mode=CropMode.SQUASH, resize=96),
    "cut squash": replace(RGB, crop_mode=CropMode.SQUASH, resize=120),
    "pad": replace(RGB, crop_mode=CropMode.PAD, resize=96),
    "small pad": replace(RGB, crop_mode=CropMode.PAD, resize=80),
    "cut pad": replace(RGB, crop_mode=CropMode.PAD, resize=110),
    "exact": replace(RGB, resize=110, exact=True),
}


def spotted(width: int, height: int, x: float, y: float) -> Image.Image:
    """Return a black image with a soft white spot."""
    across, down = np.arange(width) + 0.5, np.arange(height) + 0.5
    spot = np.exp(-((across - x) ** 2 + (down[:, np.newaxis] - y) ** 2) / 200)
    return Image.fromarray((255 * spot).astype(np.uint8)).convert("RGB")


def turned(upright: Image.Image, orientation: int) -> Image.Image:
    """Return the pixels to store, so that EXIF's orientation turns them into `upright`."""
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)
    return upright if back is None else upright.transpose(back)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(300, 200), (160, 290)])
def test_a_spot_that_the_model_sees_is_found_in_the_image(
    way: str, orientation: int, size: tuple[int, int]
) -> None:
    preprocessing: Preprocessing = WAYS[way]
    place = 0.62 * size[0], 0.41 * size[1]
    orientation = 1 if preprocessing.exact else orientation  # which looks at none
    stored = turned(spotted(*size, *place), orientation)
    file = encode(stored, "JPEG", quality=95, exif=exif(orientation))
    decoding = prepare_image(file, preprocessing, ImageLimits())
    seen = decoding.run()[:, :, 1].astype(float) ** 2
    rows, columns = np.indices(seen.shape) + 0.5
    x, y = (seen * columns).sum() / seen.sum(), (seen * rows).sum() / seen.sum()
    view = view_of(decoding)
    left, top, right, bottom = view.box
    assert view.size == size
    height, width = seen.shape
    found = left + x / width * (right - left), top + y / height * (bottom - top)
    assert np.hypot(found[0] - place[0], found[1] - place[1]) < 3


def drawn(values: np.ndarray, view: View) -> np.ndarray:
    file = overlay(values.astype(np.float32), view)
    with Image.open(io.BytesIO(file)) as image:
        assert (image.format, image.mode) == ("PNG", "RGBA")
        return np.asarray(image)


def test_an_overlay_has_the_images_proportions_and_is_clear_around_what_the_model_saw() -> None:
    values = np.zeros((7, 7))
    values[1, 5] = 3
    colours = drawn(values, View((1200, 600), (300, 0, 900, 600)))
    assert colours.shape[:2] == (160, 320)
    opacity = colours[:, :, 3]
    assert not opacity[:, :80].any()
    assert not opacity[:, 240:].any()
    y, x = np.unravel_index(opacity.argmax(), opacity.shape)
    assert abs(x - (80 + 5.5 / 7 * 160)) < 3
    assert abs(y - 1.5 / 7 * 160) < 3
    red, _, blue, _ = colours[y, x]
    assert red > 200 > blue
    assert not drawn(np.full((3, 3), 2.0), View((50, 40), (0, 0, 50, 40)))[:, :, 3].any()


@pytest.mark.parametrize(
    ("size", "box"),
    [((1, 65_535), (0, 100.2, 1, 101.2)), ((65_535, 1), (0, -32767, 65_535, 32768))],
)
def test_an_overlay_of_any_shape_is_small(size: tuple[int, int], box: tuple[float, ...]) -> None:
    colours = drawn(np.eye(5), View(size, box))  # type: ignore[arg-type]
    assert max(colours.shape) == 320


def test_only_a_file_has_a_view() -> None:
    with pytest.raises(TypeError, match="expected a Drawing"):
        view_of(Decoding(Cost(), lambda: np.zeros((1, 1, 1), np.uint8)))
