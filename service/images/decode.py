"""Bytes to pixels: limits first, then decode, orient, resize and crop in one resample.

    parse_image_file ── limits ── cost │ Pillow decodes (a large JPEG at 1/2, 1/4 or 1/8)
                                       │ ── opaque RGB or grey ── resample ── upright ── H×W×C

What is left of the line takes microseconds and says what the rest will take.

What comes out is "shorter side to `resize`, then the centre height × width" of the upright
image, with Pillow's antialiased bilinear filter, though only the pixels that the crop keeps are
computed: within 1 grey level of doing it in two steps.

Transparent pixels are seen on white paper. Colour profiles are ignored: the numbers in the file
are the numbers the model gets, as in the common training pipelines.

Safe to call from several threads.
"""

import io
import struct
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from models import ChannelOrder, Fit, Preprocessing
from service.errors import ImageError, PayloadTooLargeError
from service.images.file import ImageFile, ImageFormat, broken
from service.images.header import parse_image_file
from service.images.png import check_png
from service.images.pool import Cost, Decoding

# Our own limits hold before Pillow is asked, and its warnings say nothing to who runs a server.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")

# JPEG's own limit, and more than WebP's; a PNG 1 wide and 50 million high would cost gigabytes.
MAX_SIDE = 65_535

# What Pillow's JPEG, PNG and WebP readers raise on bytes that are no image.
_DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error)

_Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What is refused before anything is decoded."""

    max_bytes: int = 20 * 2**20  # of one file
    max_pixels: int = 25_000_000  # width × height as stored; classifiers look at 0.3 million
    max_passes: int = (
        20  # scans × pixels, as multiples of `max_pixels`; encoders write 6 to 18 scans
    )


def prepare_image(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    """What decoding a JPEG, PNG or WebP file takes, and how to do it; no pixel is read yet.

    Decoding gives height × width × C pixels, C-contiguous, C in the model's channel order (1 for
    GREY), or ImageError. Raised at once: PayloadTooLargeError: over a limit.
    UnsupportedMediaTypeError: another format or an animation. ImageError: empty, truncated or
    broken, as far as the header shows. The file is not copied.
    """
    if len(data) > limits.max_bytes:
        raise PayloadTooLargeError(
            f"the image has {len(data)} bytes, more than the {limits.max_bytes} allowed; "
            "send it smaller or compressed harder"
        )
    file = parse_image_file(data)
    if file.pixels > limits.max_pixels or max(file.width, file.height) > MAX_SIDE:
        raise PayloadTooLargeError(
            f"the image has {file.width}×{file.height} pixels; at most {limits.max_pixels} in all "
            f"and {MAX_SIDE} a side are allowed; send it smaller"
        )
    if file.scans * file.pixels > limits.max_passes * limits.max_pixels:
        raise PayloadTooLargeError(
            f"the image has {file.width}×{file.height} pixels in {file.scans} scans; that many "
            f"pixels may have {limits.max_passes * limits.max_pixels // file.pixels}; "
            "save it as a baseline JPEG, or smaller"
        )
    # Decoders would fill up what is missing with grey.
    if file.coded_bytes < file.least_bytes:
        raise broken(
            file.format,
            f"{file.width}×{file.height} pixels take {file.least_bytes} bytes at least, "
            f"and it has {file.coded_bytes}",
        )
    return Decoding(_cost(file, preprocessing), partial(_decode, file, preprocessing))


def decode_image(
    data: bytes, preprocessing: Preprocessing, limits: ImageLimits
) -> NDArray[np.uint8]:
    """`prepare_image` and its decoding in one."""
    return prepare_image(data, preprocessing, limits).run()


def _cost(file: ImageFile, preprocessing: Preprocessing) -> Cost:
    weight, shrink = file.weight, 1
    if file.format is ImageFormat.JPEG:
        wide, high = _target_and_box(_upright_size(file), preprocessing)[0]
        if file.orientation >= 5:
            wide, high = high, wide
        fits = min(file.width // max(wide, 1), file.height // max(high, 1))
        shrink = max(scale for scale in (1, 2, 4, 8) if scale == 1 or scale <= fits)
    a_pixel = weight.held_bytes + weight.drawn_bytes / shrink**2
    coded = sum(len(part) for part in file.parts)  # which Pillow is given as one piece
    return Cost(int(file.pixels * a_pixel) + coded, file.pixels * weight.ns / 1e9)


def _decode(file: ImageFile, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    try:
        image = _decode_upright(file, preprocessing)
    except _DECODER_ERRORS as error:
        # Pillow names the buffer when it recognises nothing; its other messages help.
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise ImageError(
            f"the {file.format.value} cannot be decoded{reason}: it is truncated or broken; "
            "save the image again"
        ) from error
    pixels = np.asarray(image)
    if preprocessing.channels is ChannelOrder.BGR:
        pixels = pixels[:, :, ::-1]
    return np.ascontiguousarray(pixels.reshape(preprocessing.height, preprocessing.width, -1))


def _decode_upright(file: ImageFile, preprocessing: Preprocessing) -> Image.Image:
    # Everything up to the resample works on pixels as stored; turning few pixels is cheap.
    upright = _upright_size(file)
    size = (preprocessing.width, preprocessing.height)
    target, box = _target_and_box(upright, preprocessing)
    box = _stored_box(box, upright, file.orientation)
    if file.orientation >= 5:
        target, size = target[::-1], size[::-1]
    if file.format is ImageFormat.PNG:
        check_png(file.parts)

    with Image.open(io.BytesIO(b"".join(file.parts)), formats=[file.format.name]) as image:
        if image.size != (file.width, file.height) or getattr(image, "n_frames", 1) != 1:
            raise ImageError(f"the {file.format.value} contradicts itself; save the image again")
        # A JPEG decodes at 1/2, 1/4 or 1/8 for less, as long as that is no smaller than needed.
        draft = image.draft(None, target)
        shrink = file.width / draft[1][2] if draft else 1.0
        image.load()
        opaque = _opaque(image, "L" if preprocessing.channels is ChannelOrder.GREY else "RGB")

    left, top, right, bottom = (edge / shrink for edge in box)
    small = opaque.resize(size, Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    turn = _TO_UPRIGHT.get(file.orientation)
    return small if turn is None else small.transpose(turn)


def _upright_size(file: ImageFile) -> tuple[int, int]:
    """(width, height) of the image as seen; with some orientations rows are stored columns."""
    turned = file.orientation >= 5
    return (file.height, file.width) if turned else (file.width, file.height)


def _target_and_box(
    upright: tuple[int, int], preprocessing: Preprocessing
) -> tuple[tuple[int, int], _Box]:
    """(width, height) of the whole image when resized, and the part of it, unresized, to keep."""
    width, height = upright
    if preprocessing.fit is Fit.STRETCH:
        return (preprocessing.width, preprocessing.height), (0.0, 0.0, width, height)
    # The longer side is rounded down and the crop's offset to the nearest, as torchvision does.
    shorter = min(width, height)
    resized = (
        preprocessing.resize * width // shorter,
        preprocessing.resize * height // shorter,
    )
    left = round((resized[0] - preprocessing.width) / 2)
    top = round((resized[1] - preprocessing.height) / 2)
    x, y = width / resized[0], height / resized[1]
    return resized, (
        left * x,
        top * y,
        # Rounding must not carry an edge past the image.
        min((left + preprocessing.width) * x, width),
        min((top + preprocessing.height) * y, height),
    )


_Transpose = Image.Transpose
# How to turn stored pixels upright, by EXIF orientation; 1 is upright already.
_TO_UPRIGHT = {
    2: _Transpose.FLIP_LEFT_RIGHT,
    3: _Transpose.ROTATE_180,
    4: _Transpose.FLIP_TOP_BOTTOM,
    5: _Transpose.TRANSPOSE,
    6: _Transpose.ROTATE_270,
    7: _Transpose.TRANSVERSE,
    8: _Transpose.ROTATE_90,
}


def _stored_box(box: _Box, upright: tuple[int, int], orientation: int) -> _Box:
    """Where a box of the upright image lies in the image as stored."""
    left, top, right, bottom = box
    width, height = upright
    # Undo the mirroring along each upright axis first, then exchange the axes.
    if orientation in (2, 3, 6, 7):
        left, right = width - right, width - left
    if orientation in (3, 4, 7, 8):
        top, bottom = height - bottom, height - top
    if orientation >= 5:
        left, top, right, bottom = top, left, bottom, right
    return left, top, right, bottom


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """Any image that the three decoders give, as RGB or L, on white paper."""
    if image.mode == "I;16":  # keep the high byte, as Pillow does for 16-bit colour
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = _converted(image, "RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image)
        image = paper
    return _converted(image, mode)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    # Pillow copies an image that has the mode already: 200 MB at 50 megapixels.
    return image if image.mode == mode else image.convert(mode)
