"""Images that a device resizes are bit-identical to images that the CPU resizes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kernels.problems.interpolation import Interpolation
from models import BUILT_IN_MODEL, DecodedImage, load_classifier
from models.preprocessing import PRESETS, ChannelOrder, CropMode, Preprocessing
from service.errors import ImageError
from service.images.prepare import ImageLimits, prepare_image
from tests.support import ROOT
from tests.support.images.files import encode, exif, noise, scene
from tests.support.networks import SHARED

RGB = PRESETS["imagenet"].at(224, 224)
OBLONG = replace(RGB, height=100, width=161, resize=171)
MODES = {
    "crop": RGB,
    "oblong": OBLONG,
    "squash": replace(OBLONG, crop_mode=CropMode.SQUASH),
    "pad": replace(OBLONG, crop_mode=CropMode.PAD, resize=150, scale=1.0, mean=(0.1, 40.0, 250.0)),
    "bgr": PRESETS["caffe"].at(64, 64),
    "grey": replace(RGB, channels=ChannelOrder.GREY, mean=(0.0,), std=(1.0,)),
}
MODES |= {
    "padded bgr": replace(MODES["pad"], channels=ChannelOrder.BGR),
    "padded by a colour": replace(MODES["pad"], channels=ChannelOrder.BGR, pad=(250, 3, 90)),
    "padded grey": replace(MODES["grey"], crop_mode=CropMode.PAD, resize=150, pad=(114,)),
}
SIZES = [(301, 217), (217, 301), (256, 256), (97, 31), (1500, 260), (50, 401), (1, 3)]
LIMITS = ImageLimits()
PHOTOGRAPHS = sorted((ROOT / "service/api/page/photographs").glob("*.jpg"))


def _check(data: bytes, preprocessing: Preprocessing) -> object:
    """Check that the image with its remaining resize gives the same pixels, and return it."""
    decoding = prepare_image(data, preprocessing, LIMITS)
    assert decoding.unresized is not None
    image = decoding.unresized()
    assert image.shape == preprocessing.image_shape
    assert np.array_equal(np.asarray(image), decoding.run())
    return image


@pytest.mark.parametrize("interpolation", Interpolation, ids=lambda kind: kind.value)
@pytest.mark.parametrize("mode", MODES)
def test_every_filter_and_every_way_to_fill_the_frame(
    mode: str, interpolation: Interpolation
) -> None:
    for number, size in enumerate(SIZES):
        data = encode(noise(*size), "PNG")
        p = replace(MODES[mode], interpolation=interpolation, exact=bool(number % 2))
        _check(data, p)


@pytest.mark.parametrize("mode", ["oblong", "pad", "bgr"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_of_a_jpeg_that_is_decoded_smaller(orientation: int, mode: str) -> None:
    for size in ((900, 700), (640, 481), (1203, 2017)):
        data = encode(scene(*size), "JPEG", exif=exif(orientation), quality=90)
        assert isinstance(_check(data, MODES[mode]), DecodedImage)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "data",
    [
        encode(scene(400, 300).convert("L"), "JPEG"),
        encode(scene(400, 300).convert("RGBA"), "PNG"),
        encode(scene(400, 300).convert("CMYK"), "JPEG"),
        encode(scene(400, 300).convert("P"), "PNG"),
        encode(scene(400, 300).convert("1"), "PNG"),
        encode(scene(400, 300), "WEBP"),
    ],
    ids=["grey", "transparent", "cmyk", "palette", "bits", "webp"],
)
def test_every_kind_of_pixels(data: bytes, mode: str) -> None:
    assert isinstance(_check(data, MODES[mode]), DecodedImage)
    _check(data, replace(MODES[mode], exact=True))


def test_photographs_and_the_samples_of_the_built_in_model() -> None:
    digits = load_classifier(BUILT_IN_MODEL).preprocessing
    for file in sorted((BUILT_IN_MODEL.parent / "samples").iterdir()):
        assert isinstance(_check(file.read_bytes(), digits), DecodedImage)
    assert PHOTOGRAPHS
    for file in PHOTOGRAPHS:
        assert isinstance(_check(file.read_bytes(), RGB), DecodedImage)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the photographs of ../shared/data")
@pytest.mark.parametrize("mode", MODES)
def test_each_of_two_hundred_photographs(mode: str) -> None:
    files = sorted((SHARED / "data/images").rglob("*.[jJ][pP]*[gG]"))
    assert len(files) >= 200
    for file in files:
        _check(file.read_bytes(), MODES[mode])


@pytest.mark.parametrize(
    "size", [(1300, 1000), (3, 60_000)], ids=["of too many pixels", "of too many taps"]
)
def test_an_image_too_large_for_a_device_is_resized_here(size: tuple[int, int]) -> None:
    image = _check(encode(Image.new("RGB", size, (9, 80, 200)), "PNG"), MODES["squash"])
    assert isinstance(image, np.ndarray)


def test_a_broken_file_has_the_same_error() -> None:
    whole = bytearray(encode(noise(300, 300), "PNG"))
    whole[len(whole) // 2] ^= 0xFF
    decoding = prepare_image(bytes(whole), RGB, LIMITS)
    assert decoding.unresized is not None
    errors = []
    calls: list[Callable[[], object]] = [decoding.run, decoding.unresized]
    for call in calls:
        with pytest.raises(ImageError) as caught:
            call()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
