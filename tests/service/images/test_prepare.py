"""The conversion of bytes to pixels: the results for good files."""

import io
import zlib
from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from kernels.problems.interpolation import Interpolation
from models.preprocessing import PRESETS, ChannelOrder, CropMode, Preprocessing, Rounding
from service.errors import PayloadTooLargeError
from service.images.decode import Drawing, Sketch
from service.images.prepare import ImageLimits, prepare_image
from tests.support.images.files import encode, exif, noise, png, png_chunk, scene
from tests.support.networks import SHARED

RGB = PRESETS["raw"].at(224, 224)
OBLONG = replace(RGB, height=100, width=161, resize=171)
STRETCH = replace(OBLONG, crop_mode=CropMode.SQUASH, resize=161)
SQUASH = replace(OBLONG, crop_mode=CropMode.SQUASH)
PAD = replace(OBLONG, crop_mode=CropMode.PAD, resize=150, mean=(0.1, 40.0, 250.0))
CUT_PAD = replace(PAD, resize=171)  # the longer side is cut
DOWN = replace(RGB, crop_offset=Rounding.DOWN)
PADDLE = replace(DOWN, longer_side=Rounding.NEAREST)
GREY = replace(RGB, channels=ChannelOrder.GREY, mean=(0.0,), std=(1.0,))
LIMITS = ImageLimits()

Pixels = NDArray[np.uint8]


def decode(data: bytes, preprocessing: Preprocessing = RGB) -> Pixels:
    return prepare_image(data, preprocessing, LIMITS).run()


def sketch_of(data: bytes, preprocessing: Preprocessing) -> Sketch:
    drawing = prepare_image(data, preprocessing, LIMITS).run
    assert isinstance(drawing, Drawing)
    return drawing.sketch


def test_images_of_one_size_share_their_sketch_and_those_of_no_other() -> None:
    data = encode(scene(90, 60), "JPEG")
    mine = sketch_of(data, RGB)
    assert sketch_of(encode(noise(90, 60), "JPEG"), replace(RGB)) is mine
    others = [
        sketch_of(data, PAD),
        sketch_of(encode(scene(60, 90), "JPEG"), RGB),
        sketch_of(encode(scene(90, 60), "PNG"), RGB),
        sketch_of(encode(scene(90, 60), "JPEG", exif=exif(6)), RGB),
    ]
    assert len({id(sketch) for sketch in (mine, *others)}) == 5


def in_two_steps(picture: Image.Image, p: Preprocessing) -> Pixels:
    """Compute the pixels in the way of torchvision and timm: resize the whole upright image, and
    then crop it.

    CROP is Resize and CenterCrop; SQUASH is a Resize to two sides; PAD is ResizeKeepRatio with
    longest = 1 and CenterCropOrPad.
    """
    picture = ImageOps.exif_transpose(picture).convert("RGB")
    width, height = picture.size
    within = (
        p.width * p.resize // max(p.width, p.height),
        p.height * p.resize // max(p.width, p.height),
    )
    if p.crop_mode is CropMode.SQUASH:
        width, height = within
    elif p.crop_mode is CropMode.PAD:
        times = max(width / within[0], height / within[1])
        width, height = max(1, round(width / times)), max(1, round(height / times))
    else:
        shorter = min(width, height)
        rounded = floor if p.longer_side is Rounding.DOWN else round
        width, height = (rounded(Fraction(p.resize * side, shorter)) for side in (width, height))
    picture = picture.resize((width, height), Image.Resampling[p.interpolation.name])
    if width < p.width or height < p.height:
        wide, high = max(width, p.width), max(height, p.height)
        paper = Image.new("RGB", (wide, high), tuple(round(m / p.scale) for m in p.mean))
        paper.paste(picture, ((wide - width) // 2, (high - height) // 2))
        picture, width, height = paper, wide, high
    left, top = (width - p.width) / 2, (height - p.height) / 2
    if p.crop_offset is Rounding.DOWN:
        left, top = floor(left), floor(top)
    left, top = round(left), round(top)
    return np.asarray(picture.crop((left, top, left + p.width, top + p.height)))


def furthest(a: Pixels, b: Pixels) -> int:
    """Return the largest difference of any pixel, in grey levels."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


def flat(colour: object, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (40, 30), colour)  # type: ignore[arg-type]  # any colour of the mode


def middle(pixels: Pixels) -> tuple[int, ...]:
    return tuple(pixels[pixels.shape[0] // 2, pixels.shape[1] // 2].tolist())


SIZES = [(301, 217), (217, 301), (256, 256), (224, 224), (97, 31), (1500, 260), (50, 401), (1, 3)]


EACH_MODE = pytest.mark.parametrize(
    "preprocessing",
    [RGB, OBLONG, STRETCH, SQUASH, PAD, CUT_PAD, DOWN, PADDLE],
    ids=["rgb", "oblong", "stretch", "squash", "pad", "cut pad", "down", "as PaddleClas"],
)
EACH_SIZE = pytest.mark.parametrize("size", SIZES)


@EACH_MODE
@EACH_SIZE
def test_one_resample_is_within_one_grey_level_of_resize_then_crop(
    size: tuple[int, int], preprocessing: Preprocessing
) -> None:
    picture = noise(*size)
    pixels = decode(encode(picture, "PNG"), preprocessing)
    assert furthest(pixels, in_two_steps(picture, preprocessing)) <= 1


@pytest.mark.parametrize("interpolation", Interpolation, ids=lambda kind: kind.value)
@EACH_MODE
@EACH_SIZE
def test_exact_pixels_are_to_the_bit_those_of_resize_then_crop(
    size: tuple[int, int], preprocessing: Preprocessing, interpolation: Interpolation
) -> None:
    picture = noise(*size)
    p = replace(preprocessing, interpolation=interpolation, exact=True)
    assert np.array_equal(decode(encode(picture, "PNG"), p), in_two_steps(picture, p))


@pytest.mark.parametrize("interpolation", list(Interpolation)[1:])  # all but nearest
def test_each_filter_is_within_one_grey_level_in_one_resample(interpolation: Interpolation) -> None:
    picture = noise(301, 217)
    p = replace(RGB, interpolation=interpolation)
    assert furthest(decode(encode(picture, "PNG"), p), in_two_steps(picture, p)) <= 1


def test_exact_pixels_come_from_all_of_a_jpeg_without_its_orientation_or_transparency() -> None:
    picture = scene(900, 700)
    turned = encode(picture, "JPEG", exif=exif(6), quality=95)
    plain = np.asarray(Image.open(io.BytesIO(turned)).resize((288, 224)).crop((32, 0, 256, 224)))
    p = replace(RGB, resize=224, interpolation=Interpolation.BICUBIC)
    assert np.array_equal(decode(turned, replace(p, exact=True)), plain)
    assert not np.array_equal(decode(turned, p), plain)
    clear = Image.new("RGBA", (224, 224), (200, 10, 10, 0))
    exact = decode(encode(clear, "PNG"), replace(p, exact=True))
    assert middle(exact) == (200, 10, 10)
    assert middle(decode(encode(clear, "PNG"), p)) == (255, 255, 255)


def test_an_oblong_image_that_would_be_resized_to_too_much_is_refused() -> None:
    line = encode(Image.new("RGB", (60_000, 2)), "PNG")
    assert decode(line).shape == (224, 224, 3)
    with pytest.raises(PayloadTooLargeError, match=r"resized to 7680000.256 before it is cropped"):
        decode(line, replace(RGB, exact=True))


def test_a_bgr_model_has_the_mean_colour_around_its_images() -> None:
    p = replace(CUT_PAD, channels=ChannelOrder.BGR, resize=100)
    assert tuple(decode(encode(flat((9, 9, 9)), "PNG"), p)[0, 0]) == (0, 40, 250)


@pytest.mark.parametrize("channels", [ChannelOrder.RGB, ChannelOrder.BGR])
def test_a_colour_around_images_is_red_green_and_blue(channels: ChannelOrder) -> None:
    p = replace(CUT_PAD, channels=channels, resize=100, pad=(250, 40, 9))
    order = slice(None, None, -1 if channels is ChannelOrder.BGR else 1)
    assert tuple(decode(encode(flat((9, 9, 9)), "PNG"), p)[0, 0][order]) == (250, 40, 9)


def test_a_picture_of_the_models_own_size_is_not_touched() -> None:
    picture = noise(224, 224)
    exact = replace(RGB, resize=224)
    assert np.array_equal(decode(encode(picture, "PNG"), exact), np.asarray(picture))


@pytest.mark.parametrize("preprocessing", [RGB, OBLONG, STRETCH], ids=["rgb", "oblong", "stretch"])
@pytest.mark.parametrize("size", [(301, 217), (50, 401)])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["PNG", "WebP"])
def test_exif_orientation_turns_the_picture_upright_before_the_crop(
    image_format: str, orientation: int, size: tuple[int, int], preprocessing: Preprocessing
) -> None:
    options = {"lossless": True} if image_format == "WebP" else {}
    data = encode(noise(*size), image_format, exif=exif(orientation), **options)
    expected = in_two_steps(Image.open(io.BytesIO(data)), preprocessing)
    assert furthest(decode(data, preprocessing), expected) <= 1


def test_rounding_never_carries_the_crop_past_the_picture() -> None:
    whole = replace(GREY, height=49, width=49, resize=49)
    awkward = [side for side in range(49, 500) if side / 49 * 49 > side]
    assert awkward
    for side in awkward:
        data = encode(Image.new("L", (side, side), 200), "PNG", exif=exif(3))
        assert (decode(data, whole) == 200).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_turned_jpeg_decodes_scaled_and_upright(orientation: int) -> None:
    data = encode(scene(1600, 1100), "JPEG", quality=95, exif=exif(orientation))
    expected = in_two_steps(Image.open(io.BytesIO(data)), OBLONG)
    difference = np.abs(decode(data, OBLONG).astype(int) - expected)
    # Scaled decoding filters a little differently; a wrong turn or crop differs by dozens.
    assert difference.mean() < 2


@pytest.mark.parametrize(
    ("size", "shrunk_to"),
    [
        ((500, 375), (500, 375)),
        ((511, 2000), (511, 2000)),  # half of it would be under 256
        ((512, 700), (256, 350)),
        ((1025, 1601), (257, 401)),
        ((4000, 3000), (500, 375)),
        ((2100, 8000), (263, 1000)),
    ],
)
def test_a_large_jpeg_is_decoded_scaled_but_never_below_the_resize(
    size: tuple[int, int], shrunk_to: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resized: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def spy(picture: Image.Image, *args: object, **options: object) -> Image.Image:
        resized.append(picture.size)
        return resize(picture, *args, **options)  # type: ignore[arg-type]  # handed on as they are

    monkeypatch.setattr(Image.Image, "resize", spy)
    data = encode(Image.new("RGB", size, "teal"), "JPEG")
    pixels = decode(data)
    assert resized == [shrunk_to]
    assert min(shrunk_to) >= 256
    assert furthest(pixels, np.full_like(pixels, (0, 128, 128))) <= 4


@pytest.mark.parametrize("size", [(1, 10_000), (10_000, 1), (3, 65_535)])
@pytest.mark.parametrize("preprocessing", [RGB, STRETCH], ids=["crop", "stretch"])
def test_extreme_aspect_ratios_decode(size: tuple[int, int], preprocessing: Preprocessing) -> None:
    pixels = decode(encode(Image.new("RGB", size, (10, 20, 30)), "PNG"), preprocessing)
    assert furthest(pixels, np.full_like(pixels, (10, 20, 30))) == 0


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WebP"])
def test_pixels_are_contiguous_bytes_in_the_models_channel_order(image_format: str) -> None:
    data = encode(flat((200, 100, 30)), image_format, quality=95)
    rgb = decode(data)
    bgr = decode(data, replace(RGB, channels=ChannelOrder.BGR))
    grey = decode(data, GREY)
    for pixels, channels in ((rgb, 3), (bgr, 3), (grey, 1)):
        assert pixels.shape == (224, 224, channels)
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous
    assert furthest(rgb, np.full_like(rgb, (200, 100, 30))) <= 3
    assert np.array_equal(bgr, rgb[:, :, ::-1])
    luma = round(0.299 * 200 + 0.587 * 100 + 0.114 * 30)
    assert furthest(grey, np.full_like(grey, luma)) <= 3


def test_a_small_model_gets_its_one_grey_channel() -> None:
    digits = replace(GREY, height=32, width=32, resize=32)
    pixels = decode(encode(flat(77, "L"), "PNG"), digits)
    assert pixels.shape == (32, 32, 1)
    assert (pixels == 77).all()


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (flat(90, "L"), (90, 90, 90)),
        (flat(1, "1"), (255, 255, 255)),
        (flat((10, 20, 30), "RGB"), (10, 20, 30)),
        (flat((10, 20, 30, 255), "RGBA"), (10, 20, 30)),
        (flat((10, 20, 30, 0), "RGBA"), (255, 255, 255)),
        (flat((10, 20, 30, 51), "RGBA"), (206, 208, 210)),
        (flat((100, 0), "LA"), (255, 255, 255)),
        (flat((100, 255), "LA"), (100, 100, 100)),
        (flat((10, 200, 30)).quantize(4), (10, 200, 30)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_every_kind_of_png_becomes_rgb_with_transparency_on_white(
    picture: Image.Image, expected: tuple[int, ...]
) -> None:
    assert middle(decode(encode(picture, "PNG"))) == expected


def test_a_transparent_palette_colour_is_seen_on_white() -> None:
    picture = flat((10, 200, 30)).quantize(4)
    data = encode(picture, "PNG", transparency=picture.getpixel((5, 5)))
    assert middle(decode(data)) == (255, 255, 255)


@pytest.mark.parametrize(("colour", "transparent"), [((1, 2, 3), True), ((1, 2, 4), False)])
def test_a_transparent_key_colour_is_seen_on_white(
    colour: tuple[int, int, int], transparent: bool
) -> None:
    data = encode(flat((1, 2, 3)), "PNG", transparency=colour)
    assert middle(decode(data)) == ((255, 255, 255) if transparent else (1, 2, 3))


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (0x1234, 0x12), (0x8000, 0x80), (0xFFFF, 0xFF)]
)
@pytest.mark.parametrize("preprocessing", [RGB, GREY], ids=["rgb", "grey"])
def test_16_bit_grey_is_scaled_not_clipped(
    value: int, expected: int, preprocessing: Preprocessing
) -> None:
    picture = Image.fromarray(np.full((30, 40), value, np.uint16))
    assert set(middle(decode(encode(picture, "PNG"), preprocessing))) == {expected}


def test_16_bit_colour_is_scaled_and_its_key_colour_left_alone() -> None:
    row = b"\0" + bytes([0x12, 0x34, 0x80, 0x00, 0xFF, 0xFF]) * 4
    pixels = png_chunk(b"IDAT", zlib.compress(row * 4))
    # Nearly black in 16 bits; in 8 bits it would be the colour of every pixel here.
    key = png_chunk(b"tRNS", bytes([0, 0x12, 0, 0x80, 0, 0xFF]))
    assert middle(decode(png(4, 4, 16, 2, key, pixels))) == (0x12, 0x80, 0xFF)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_every_kind_of_jpeg_decodes(options: dict[str, object]) -> None:
    for mode, tolerance in (("L", 2), ("RGB", 3), ("CMYK", 4)):
        picture = flat((60, 120, 180)).convert(mode)
        expected = picture.convert("RGB").getpixel((5, 5))
        pixels = decode(encode(picture, "JPEG", quality=95, **options))
        assert furthest(pixels, np.full_like(pixels, expected)) <= tolerance


def test_a_webp_with_alpha_is_seen_on_white() -> None:
    data = encode(flat((10, 20, 30, 0), "RGBA"), "WebP", lossless=True)
    assert middle(decode(data)) == (255, 255, 255)


def test_colour_profiles_comments_and_thumbnails_change_nothing() -> None:
    picture = scene(300, 260)
    for image_format in ("JPEG", "PNG", "WebP"):
        plain = decode(encode(picture, image_format))
        laden = encode(picture, image_format, icc_profile=b"no profile" * 1000, exif=exif(1))
        assert np.array_equal(decode(laden), plain)


def test_photographs_decode_as_in_two_steps() -> None:
    if not SHARED.exists():
        pytest.skip(f"no photographs: {SHARED} is absent")
    photographs = sorted((SHARED / "data/images").glob("*.JPEG"))[::10]
    assert photographs
    for path in photographs:
        with Image.open(path) as picture:
            if min(picture.size) < 2 * RGB.resize:  # larger ones are decoded scaled
                expected = in_two_steps(picture, RGB)
                assert furthest(decode(path.read_bytes()), expected) <= 1, path.name
