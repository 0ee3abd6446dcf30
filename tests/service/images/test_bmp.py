"""BMP files: common ones are decoded correctly, and others are refused before they are decoded."""

import struct

import numpy as np
import pytest
from PIL import Image

from service.errors import ImageError
from service.images.prepare import ImageLimits, parse_image_file, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support.images.files import encode, scene

IMAGE = scene(40, 30)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "1"])
def test_a_bmp_is_drawn_as_the_same_png_is(mode: str) -> None:
    image = IMAGE.convert(mode)
    bmp, png = (
        prepare_image(encode(image.convert("RGB") if mode == "RGBA" else image, kind), RGB, LIMITS)
        for kind in ("BMP", "PNG")
    )
    np.testing.assert_array_equal(bmp.run(), png.run())


LIMITS = ImageLimits()


def test_rows_from_top_to_bottom_are_taken() -> None:
    data = bytearray(encode(IMAGE, "BMP"))
    data[22:26] = struct.pack("<i", -30)
    flipped = prepare_image(bytes(data), RGB, LIMITS).run()
    upright = IMAGE.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    np.testing.assert_array_equal(flipped, prepare_image(encode(upright, "BMP"), RGB, LIMITS).run())


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (14, b"\x99", "header has 153 bytes, which is not a valid length"),
        (18, struct.pack("<i", -5), "header is invalid"),
        (18, bytes(4), "width or height"),
        (18, struct.pack("<i", 4000), "truncated"),
        (28, b"\x05", "header is invalid"),
        (30, b"\x04", "compression method 4"),
    ],
)
def test_what_is_no_usual_bmp_is_refused(at: int, value: bytes, says: str) -> None:
    data = bytearray(encode(IMAGE, "BMP"))
    data[at : at + len(value)] = value
    with pytest.raises(ImageError, match=says):
        parse_image_file(bytes(data))


def test_a_gif_gives_its_first_frame() -> None:
    others = [scene(40, 30, seed).quantize(64) for seed in (1, 2)]
    first = IMAGE.quantize(64)
    animation = encode(first, "GIF", save_all=True, append_images=others)
    file = parse_image_file(animation)
    assert len(b"".join(file.parts)) < len(animation)
    np.testing.assert_array_equal(
        prepare_image(animation, RGB, LIMITS).run(),
        prepare_image(encode(first, "PNG"), RGB, LIMITS).run(),
    )
