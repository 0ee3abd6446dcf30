"""Bytes to pixels: limits first, then decode, orient, resize and crop in one resample.

    parse_image_file  ->  check limits  ->  Pillow decodes (a large JPEG at 1/2, 1/4 or 1/8)
    ->  opaque RGB or grey  ->  one resample of the part that is kept  ->  upright  ->  H×W×C

What comes out is "shorter side to `resize`, then the centre height × width" of the upright
picture, with Pillow's antialiased bilinear filter, though only the pixels that the crop keeps are
computed: within 1 grey level of doing it in two steps.

Transparent pixels are seen on white paper. Colour profiles are ignored: the numbers in the file
are the numbers the model gets, as in the common training pipelines.

Safe to call from several threads.
"""

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from models import ChannelOrder, Fit, Preprocessing
from service.errors import ImageError, PayloadTooLargeError
from service.image_files import ImageFile, parse_image_file

# Our own limits hold before Pillow is asked, and its warnings say nothing to who runs a server.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")

# JPEG's own limit, and more than WebP's; a PNG 1 wide and 50 million high would cost gigabytes.
MAX_SIDE = 65_535

# What Pillow's JPEG, PNG and WebP readers raise on bytes that are no picture.
_DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error)

_Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What is refused before anything is decoded."""

    max_bytes: int = 20 * 2**20  # of one file
    max_pixels: int = 50_000_000  # width × height as stored; 50 megapixels is a phone's largest


def decode_image(
    data: bytes, preprocessing: Preprocessing, limits: ImageLimits
) -> NDArray[np.uint8]:
    """A JPEG, PNG or WebP file as the model wants to see it.

    Returns height × width × C pixels, C-contiguous, C in the model's channel order (1 for GREY).
    PayloadTooLargeError: over a limit. UnsupportedMediaTypeError: another format or an animation.
    ImageError: empty, truncated or broken.
    """
    if len(data) > limits.max_bytes:
        raise PayloadTooLargeError(
            f"the image has {len(data)} bytes, more than the {limits.max_bytes} allowed; "
            "send it smaller or compressed harder"
        )
    file = parse_image_file(data)
    if file.width * file.height > limits.max_pixels or max(file.width, file.height) > MAX_SIDE:
        raise PayloadTooLargeError(
            f"the image has {file.width}×{file.height} pixels; at most {limits.max_pixels} in all "
            f"and {MAX_SIDE} a side are allowed; send it smaller"
        )
    try:
        picture = _decode(file, preprocessing)
    except _DECODER_ERRORS as error:
        # Pillow names the buffer when it recognises nothing; its other messages help.
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise ImageError(
            f"the {file.format.value} cannot be decoded{reason}: it is truncated or broken; "
            "save the picture again"
        ) from error
    pixels = np.asarray(picture)
    if preprocessing.channels is ChannelOrder.BGR:
        pixels = pixels[:, :, ::-1]
    return np.ascontiguousarray(pixels.reshape(preprocessing.height, preprocessing.width, -1))


def _decode(file: ImageFile, preprocessing: Preprocessing) -> Image.Image:
    # Everything up to the resample works on pixels as stored; turning few pixels is cheap.
    turned = file.orientation >= 5  # the stored rows are the upright picture's columns
    upright = (file.height, file.width) if turned else (file.width, file.height)
    size = (preprocessing.width, preprocessing.height)
    target, box = _target_and_box(upright, preprocessing)
    box = _stored_box(box, upright, file.orientation)
    if turned:
        target, size = target[::-1], size[::-1]

    with Image.open(io.BytesIO(file.data), formats=[file.format.name]) as picture:
        if picture.size != (file.width, file.height) or getattr(picture, "n_frames", 1) != 1:
            raise ImageError(f"the {file.format.value} contradicts itself; save the picture again")
        # A JPEG decodes at 1/2, 1/4 or 1/8 for less, as long as that is no smaller than needed.
        draft = picture.draft(None, target)
        shrink = file.width / draft[1][2] if draft else 1.0
        picture.load()
        opaque = _opaque(picture, "L" if preprocessing.channels is ChannelOrder.GREY else "RGB")

    left, top, right, bottom = (edge / shrink for edge in box)
    small = opaque.resize(size, Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    turn = _TO_UPRIGHT.get(file.orientation)
    return small if turn is None else small.transpose(turn)


def _target_and_box(
    upright: tuple[int, int], preprocessing: Preprocessing
) -> tuple[tuple[int, int], _Box]:
    """(width, height) of the whole picture when resized, and the part of it, unresized, to keep."""
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
        # Rounding must not carry an edge past the picture.
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
    """Where a box of the upright picture lies in the picture as stored."""
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


def _opaque(picture: Image.Image, mode: str) -> Image.Image:
    """Any picture that the three decoders give, as RGB or L, on white paper."""
    if picture.mode == "I;16":  # keep the high byte, as Pillow does for 16-bit colour
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        picture = _converted(picture, "RGBA")
        paper = Image.new("RGB", picture.size, "white")
        paper.paste(picture, mask=picture)
        picture = paper
    return _converted(picture, mode)


def _converted(picture: Image.Image, mode: str) -> Image.Image:
    # Pillow copies a picture that has the mode already: 200 MB at 50 megapixels.
    return picture if picture.mode == mode else picture.convert(mode)
