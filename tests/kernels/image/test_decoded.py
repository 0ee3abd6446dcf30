"""Decoded images become Pillow's pixels: resized, cropped, rotated, with transparency on white."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kernels.image.decoded import (
    MIDDLE_BYTES,
    MOST_PIXELS,
    PLACE_BYTES,
    DecodedImage,
    WrittenImage,
    _is_down_first,
)
from kernels.image.place import write
from kernels.problems.interpolation import Interpolation
from tests.support.cases.resize import FRAME, TURNS, decoded, pixels

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Each EXIF orientation."""

SIZES = ((31, 17), (16, 60), (3, 2), (9, 90))


@pytest.mark.parametrize("kind", Interpolation, ids=lambda kind: kind.value)
@pytest.mark.parametrize("orientation", TURNS)
def test_an_image_becomes_pillows_pixels(orientation: int, kind: Interpolation) -> None:
    for size in SIZES:
        for inside in (FRAME, (7, 9), (12, 4)):
            image = decoded(size, kind, orientation=orientation, inside=inside, crop=(3, 1))
            resize = image.resize
            source = pixels(size[1], size[0], 3, orientation)
            filter_ = Image.Resampling[kind.name]
            theirs = Image.fromarray(source).resize(resize.size, filter_).crop(resize.crop)
            if orientation != 1:
                theirs = theirs.transpose(_UPRIGHT[orientation])
            framed = Image.new("RGB", FRAME, resize.paper)
            framed.paste(theirs, ((FRAME[0] - inside[0]) // 2, (FRAME[1] - inside[1]) // 2))
            assert np.array_equal(np.asarray(image), np.asarray(framed))


def test_the_order_of_the_axes_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass rounds, so the tests above would notice another order of the passes."""
    orders = {_is_down_first(*size, FRAME) for size in SIZES[:2]}
    assert orders == {False, True}
    right = [np.asarray(decoded(size, Interpolation.BILINEAR)) for size in SIZES[:2]]
    monkeypatch.setattr(
        "kernels.image.decoded._is_down_first", lambda *about: not _is_down_first(*about)
    )
    for size, expected in zip(SIZES[:2], right, strict=True):
        assert not np.array_equal(np.asarray(decoded(size, Interpolation.BILINEAR)), expected)


def test_channels_are_repeated_and_reversed() -> None:
    colour = decoded((31, 17), Interpolation.BICUBIC)
    reverse = DecodedImage(
        pixels(17, 31, 3, 1), replace(colour.resize, channels=(2, 1, 0), paper=(1, 2, 3))
    )
    assert np.array_equal(np.asarray(reverse), np.asarray(colour)[..., ::-1])
    one = decoded((31, 17), Interpolation.BICUBIC, channels=1, of=(0,))
    three = decoded((31, 17), Interpolation.BICUBIC, channels=1)
    assert three.shape == (9, 12, 3)
    assert np.array_equal(np.asarray(three), np.asarray(one).repeat(3, axis=2))


def test_only_the_pixels_that_the_crop_shows_are_kept() -> None:
    image = decoded((400, 300), Interpolation.BOX, crop=(44, 0))
    assert image.pixels.shape == (300, 48, 3)


def test_an_image_that_a_place_has_no_room_for_is_refused() -> None:
    side = int(MOST_PIXELS**0.5)
    write(np.zeros(PLACE_BYTES, np.uint8), decoded((side, side), Interpolation.BILINEAR))
    with pytest.raises(ValueError, match="1024×1025×3 is too large"):
        decoded((side + 1, side), Interpolation.BILINEAR)
    with pytest.raises(ValueError, match="is too large for"):  # each of 9 rows is made of 40,000
        decoded((2, 60_000), Interpolation.LANCZOS)
    # 2 pixels a row become 1.2 million, of 3 bytes, before the rows become fewer.
    resize = decoded((2, 9), Interpolation.NEAREST).resize
    wide = replace(resize, size=(1_200_000, 9), crop=(0, 0, 1_200_000, 9), frame=(1_200_000, 9))
    with pytest.raises(ValueError, match="is too large for"):
        DecodedImage(pixels(9, 2, 3), wide)
    with pytest.raises(ValueError, match="is too large for"):
        DecodedImage(pixels(9, 2, 3), replace(resize, channels=(0, 1, 2, 0, 1)))


@pytest.mark.parametrize("kind", Interpolation, ids=lambda kind: kind.value)
def test_what_fits_has_room_in_its_place(kind: Interpolation) -> None:
    """Bounds that are computed only from sizes hold for the data that is written."""
    random = np.random.default_rng(5)
    fitted = 0
    for _ in range(200):
        width, height = (int(2 ** random.uniform(0, 15)) for _ in range(2))
        across, down = (int(2 ** random.uniform(0, 8)) for _ in range(2))
        x, y = np.sort(random.uniform(0, width, 2)), np.sort(random.uniform(0, height, 2))
        resize = replace(
            decoded((1, 1), kind).resize,
            size=(across, down),
            crop=(0, 0, across, down),
            box=(x[0], y[0], x[1], y[1]),
            frame=(across, down),
        )
        if x[0] == x[1] or y[0] == y[1] or not resize.fits(width, height, 3):
            continue
        fitted += 1
        image = DecodedImage(np.broadcast_to(np.uint8(9), (height, width, 3)), resize)
        place = np.zeros(PLACE_BYTES, np.uint8)
        write(place, image)
        _, used, _, middle = place[:16].view(np.int32)
        assert used <= PLACE_BYTES
        assert middle <= MIDDLE_BYTES
    assert fitted > 50


def test_what_is_written_is_the_same_image_in_whichever_place() -> None:
    image = decoded((31, 17), Interpolation.BICUBIC, orientation=6, inside=(7, 9))
    first, second = (np.full(2**16, fill, np.uint8) for fill in (3, 5))
    write(first, image)
    written = WrittenImage(first, image.shape)
    write(second, written)
    assert written.kind is image.kind
    assert np.array_equal(np.asarray(written), np.asarray(image))
    again = WrittenImage(second, image.shape)
    assert np.array_equal(np.asarray(again, np.float32), np.asarray(image))
