"""A JPEG is prepared for a device. Its resize is the same that would remain if the CPU decoded
it."""

from dataclasses import replace

import pytest
from PIL import Image

from models import PRESETS, ChannelOrder, CropMode, DecodedImage, JpegImage, Kind, Preprocessing
from service.images.decode_pool import NotForDeviceError
from service.images.prepare import ImageLimits, prepare_image
from tests.support import ROOT
from tests.support.images.files import encode, exif, scene

RGB = PRESETS["imagenet"].at(64, 64)
MODES = {
    "crop": RGB,
    "squash": replace(RGB, crop_mode=CropMode.SQUASH, resize=80),
    "pad": replace(RGB, crop_mode=CropMode.PAD, resize=60),
    "bgr": PRESETS["caffe"].at(64, 48),
    "exact": replace(RGB, exact=True),
}
GREY = replace(RGB, channels=ChannelOrder.GREY, mean=(0.0,), std=(1.0,))
PHOTOGRAPHS = sorted((ROOT / "service/api/page/photographs").glob("*.jpg"))


def laid_out(data: bytes, preprocessing: Preprocessing) -> tuple[JpegImage, DecodedImage]:
    decoding = prepare_image(data, preprocessing, ImageLimits())
    assert decoding.file is not None
    assert decoding.unresized is not None
    file, decoded = decoding.file(), decoding.unresized()
    assert isinstance(file, JpegImage)
    assert isinstance(decoded, DecodedImage)
    assert (file.kind, file.shape, file.dtype) == (Kind.JPEG, decoded.shape, decoded.dtype)
    return file, decoded


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_what_is_left_to_resize_is_the_same_at_every_scale(orientation: int, mode: str) -> None:
    eighths = set()
    for width, height in ((70, 61), (200, 150), (401, 333), (1203, 817)):
        data = encode(scene(width, height), "JPEG", exif=exif(orientation))
        file, decoded = laid_out(data, MODES[mode])
        assert file.resize == decoded.resize
        assert file.pixels_shape == decoded.pixels.shape
        eighths.add(file.eighths)
    assert eighths >= {"crop": {8, 4, 2, 1}, "exact": {8}}.get(mode, {8, 2})
    assert mode != "exact" or eighths == {8}


def test_photographs_and_a_grey_file_for_either_kind_of_model() -> None:
    assert PHOTOGRAPHS
    for photograph in PHOTOGRAPHS:
        file, decoded = laid_out(photograph.read_bytes(), RGB)
        assert (file.resize, file.pixels_shape) == (decoded.resize, decoded.pixels.shape)
    grey = encode(scene(200, 150).convert("L"), "JPEG")
    for preprocessing in (RGB, GREY):
        file, decoded = laid_out(grey, preprocessing)
        assert (file.resize, file.pixels_shape) == (decoded.resize, decoded.pixels.shape)


@pytest.mark.parametrize(
    ("data", "preprocessing", "reason"),
    [
        (encode(scene(70, 61), "JPEG", progressive=True), RGB, "progressive"),
        (encode(scene(70, 61).convert("CMYK"), "JPEG"), RGB, "components"),
        (encode(scene(70, 61), "JPEG"), GREY, "components"),
        (encode(Image.new("RGB", (2001, 2000)), "JPEG"), RGB, "large"),
        (encode(Image.new("RGB", (1030, 1030)), "JPEG"), replace(RGB, exact=True), "large"),
    ],
    ids=["progressive", "cmyk", "colour for grey", "pixels as stored", "pixels decoded"],
)
def test_what_is_not_for_a_device_says_why(
    data: bytes, preprocessing: Preprocessing, reason: str
) -> None:
    decoding = prepare_image(data, preprocessing, ImageLimits())
    assert decoding.file is not None
    with pytest.raises(NotForDeviceError) as caught:
        decoding.file()
    assert caught.value.reason == reason
    assert decoding.run().shape == preprocessing.image_shape


def test_other_formats_are_no_files_for_a_device() -> None:
    for kind in ("PNG", "WEBP"):
        assert prepare_image(encode(scene(30, 30), kind), RGB, ImageLimits()).file is None
