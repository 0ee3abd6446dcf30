"""Bytes to pixels: limits first, then one resample that orients, resizes and crops.

    parse_image_file ── limits ── cost │ Pillow decodes (a large JPEG at 1/2, 1/4 or 1/8)
                                       │ ── opaque RGB or grey ── resample ── upright ── H×W×C

The left half takes microseconds and estimates the right half.

The output is the upright image resized to `resize` on its shorter side and cropped to the centre
height × width, with Pillow's antialiased bilinear filter. Only the pixels inside the crop are
computed: within 1 grey level of doing it in two steps.

Transparency is drawn on white. Colour profiles are ignored, as in common training pipelines: the
model gets the numbers in the file. Thread-safe.
"""

import io
import struct
import warnings
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from models import ChannelOrder, Fit, Pixels, Preprocessing
from service.errors import ImageError, PayloadTooLargeError
from service.images.decode_pool import Cost, Decoding
from service.images.file import ImageFile, ImageFormat
from service.images.header import parse_image_file
from service.images.png import check_png

# The limits below apply before Pillow reads the file, so its own limit and warnings add nothing.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")

# JPEG's own limit, and more than WebP's; a PNG 1 wide and 50 million high would cost gigabytes.
MAX_SIDE = 65_535

# What Pillow's JPEG, PNG and WebP readers raise on invalid bytes.
_DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error)

# Pillow's modes of grey.
_GREY = {"1", "L"}

_Transpose = Image.Transpose

# EXIF orientations: how to turn stored pixels upright (1 is upright), ...
_TO_UPRIGHT = {
    2: _Transpose.FLIP_LEFT_RIGHT,
    3: _Transpose.ROTATE_180,
    4: _Transpose.FLIP_TOP_BOTTOM,
    5: _Transpose.TRANSPOSE,
    6: _Transpose.ROTATE_270,
    7: _Transpose.TRANSVERSE,
    8: _Transpose.ROTATE_90,
}
# ... which exchange the axes, and which reverse the stored x or y axis.
_TURNED, _X_REVERSED, _Y_REVERSED = {5, 6, 7, 8}, {2, 3, 7, 8}, {3, 4, 6, 7}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Checked before anything is decoded."""

    max_bytes: int = 20 * 2**20  # of one file
    max_pixels: int = 25_000_000  # width × height as stored; classifiers look at 0.3 million
    max_passes: int = 20  # scans × pixels, in multiples of `max_pixels`; encoders write 6 to 18


class _Geometry(NamedTuple):
    """Sizes and crop for one file, with x and y as stored, not as upright."""

    resized: tuple[int, int]  # the whole image
    size: tuple[int, int]  # the crop, resized
    box: tuple[float, float, float, float]  # the crop in stored pixels: left, top, right, bottom


def prepare_image(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    """Check a JPEG, PNG or WebP file and estimate its decoding cost; decodes no pixel.

    Running the result gives height × width × C pixels, C-contiguous, in the model's channel order
    (C = 1 for GREY), or raises ImageError. Raised at once: PayloadTooLargeError: over a limit.
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
            f"the image has {file.width}×{file.height} pixels in {file.scans} scans; at this size "
            f"{limits.max_passes * limits.max_pixels // file.pixels} scans are allowed; "
            "save it as a baseline JPEG, or smaller"
        )
    # Decoders would fill missing pixels with grey.
    if file.coded_bytes < file.least_bytes:
        raise file.format.broken(
            f"{file.width}×{file.height} pixels take {file.least_bytes} bytes at least, "
            f"and it has {file.coded_bytes}"
        )
    geometry = _geometry(file, preprocessing)
    return Decoding(_cost(file, geometry), partial(_decode, file, geometry, preprocessing.channels))


def _geometry(file: ImageFile, preprocessing: Preprocessing) -> _Geometry:
    size = preprocessing.width, preprocessing.height
    if file.orientation in _TURNED:
        size = size[::-1]
    if preprocessing.fit is Fit.STRETCH:
        return _Geometry(size, size, (0.0, 0.0, file.width, file.height))
    # The longer side is rounded down, and the crop's offset to the nearest, as torchvision does.
    shorter = min(file.width, file.height)
    width = preprocessing.resize * file.width // shorter
    height = preprocessing.resize * file.height // shorter
    left, right = _span(file.width, width, size[0], reverse=file.orientation in _X_REVERSED)
    top, bottom = _span(file.height, height, size[1], reverse=file.orientation in _Y_REVERSED)
    return _Geometry((width, height), size, (left, top, right, bottom))


def _span(side: int, resized: int, cropped: int, *, reverse: bool) -> tuple[float, float]:
    """The first and last stored pixel of a centre crop along one axis."""
    scale = side / resized
    offset = round((resized - cropped) / 2)
    # Rounding must not move an edge past the image.
    first, last = offset * scale, min((offset + cropped) * scale, side)
    return (side - last, side - first) if reverse else (first, last)


def _cost(file: ImageFile, geometry: _Geometry) -> Cost:
    weight, shrink = file.weight, 1
    if file.format is ImageFormat.JPEG:
        width, height = geometry.resized
        fits = max(1, min(file.width // width, file.height // height))
        shrink = max(scale for scale in (1, 2, 4, 8) if scale <= fits)
    pixel_bytes = weight.held_bytes + weight.drawn_bytes / shrink**2
    coded_bytes = sum(map(len, file.parts))  # Pillow reads a joined copy
    return Cost(int(file.pixels * pixel_bytes) + coded_bytes, file.pixels * weight.ns / 1e9)


def _decode(file: ImageFile, geometry: _Geometry, channels: ChannelOrder) -> Pixels:
    try:
        image = _decode_upright(file, geometry, "L" if channels is ChannelOrder.GREY else "RGB")
    except _DECODER_ERRORS as error:
        # Of Pillow's messages only this one says nothing: it names the buffer.
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise ImageError(
            f"the {file.format.value} cannot be decoded{reason}: it is truncated or broken; "
            "save the image again"
        ) from error
    pixels = np.asarray(image)
    if channels is ChannelOrder.BGR:
        pixels = pixels[:, :, ::-1]
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1))


def _decode_upright(file: ImageFile, geometry: _Geometry, mode: str) -> Image.Image:
    if file.format is ImageFormat.PNG:
        check_png(file.parts)
    with Image.open(io.BytesIO(b"".join(file.parts)), formats=[file.format.name]) as image:
        if image.size != (file.width, file.height) or getattr(image, "n_frames", 1) != 1:
            raise ImageError(f"the {file.format.value} contradicts itself; save the image again")
        # A JPEG decodes at 1/2, 1/4 or 1/8 for less, as long as that is no smaller than needed.
        draft = image.draft(None, geometry.resized)
        shrink = file.width / draft[1][2] if draft else 1.0
        image.load()
        opaque = _opaque(image, mode)
    # Resized before it is turned: turning few pixels is cheap.
    left, top, right, bottom = (edge / shrink for edge in geometry.box)
    small = opaque.resize(geometry.size, Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    turn = _TO_UPRIGHT.get(file.orientation)
    return _converted(small if turn is None else small.transpose(turn), mode)


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """Any decoded image as RGB or L, on white; grey stays L, which takes a quarter of RGB."""
    if image.mode == "I;16":  # keep the high byte, as Pillow does for 16-bit colour
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = _converted(image, "RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image)
        image = paper
    return _converted(image, "L" if image.mode in _GREY else mode)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    # `convert` copies an image that has the mode already: 200 MB at 50 megapixels.
    return image if image.mode == mode else image.convert(mode)
