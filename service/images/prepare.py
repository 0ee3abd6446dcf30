"""Checks an image file and estimates the cost of decoding it, without decoding a pixel.

    parse_image_file ── limits ── sketch, kept by size ─┬─ cost, which the pool reserves
                                                        └─ Drawing (decode.py), which the pool runs

Checking takes microseconds, because a format's parser reads only as much of the header as the
limits require. The decoder gets only the segments that affect pixels. So comments, colour profiles,
thumbnails and EXIF cost no time or memory, and a malicious file reaches less code. The crop is
computed here, in coordinates of the image as stored in the file.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import floordiv
from typing import NamedTuple

import numpy as np
from PIL.Image import Resampling

from models import (
    ChannelOrder,
    CropMode,
    DecodedImage,
    Image,
    Interpolation,
    JpegImage,
    Preprocessing,
    Reason,
    Resize,
    Rounding,
    UnsuitableError,
    read_jpeg,
)
from service.engine.lane import Cost
from service.errors import ImageError, PayloadTooLargeError, UnsupportedMediaTypeError
from service.images import turbo
from service.images.bmp import parse_bmp
from service.images.decode import Drawing, How, Sketch
from service.images.decode_pool import Decoding, NotForDeviceError
from service.images.file import (
    FORMATS,
    REORIENTATIONS,
    ImageFile,
    ImageFormat,
    Reorientation,
)
from service.images.gif import parse_gif_image
from service.images.heif import parse_avif, parse_heic
from service.images.jpeg import parse_jpeg
from service.images.png import parse_png
from service.images.signatures import unread
from service.images.tiff import parse_tiff
from service.images.webp import parse_webp

# Bytes that curl -d drops from a file; every image of at least _SURE bytes has one of them.
_DROPPED, _SURE = (b"\0", b"\r", b"\n"), 2048

_PARSERS = {
    ImageFormat.JPEG: parse_jpeg,
    ImageFormat.PNG: parse_png,
    ImageFormat.WEBP: parse_webp,
    ImageFormat.GIF: parse_gif_image,
    ImageFormat.BMP: parse_bmp,
    ImageFormat.TIFF: parse_tiff,
    ImageFormat.AVIF: parse_avif,
    ImageFormat.HEIF: parse_heic,
}

# JPEG's own limit, above WebP's. A PNG 1 pixel wide and 50 million high would take gigabytes.
MAX_SIDE = 65_535


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Holds the limits that an image must satisfy before it is decoded."""

    max_bytes: int = 20 * 2**20  # of one file
    max_pixels: int = 25_000_000  # width × height as stored; classifiers look at 0.3 million
    max_passes: int = 20  # scans × pixels, in multiples of `max_pixels`; encoders write 6 to 18
    max_clip_s: float = 5.0  # estimated seconds of one core to decode one clip


# Pillow keeps a pixel in four bytes, and resizes one axis before the other.
_RESIZED_BYTES = 8

# The most sketches that are kept for all models: 1 kB each.
_SIZES = 512

_FILTERS = {kind: Resampling[kind.name] for kind in Interpolation}


class _Geometry(NamedTuple):
    """Holds the size and the crop of a resized image. x and y refer to the image before any
    rotation."""

    resized: tuple[int, int]  # the whole image
    crop: tuple[int, int, int, int]  # in resized pixels: left, top, right, bottom
    box: tuple[float, float, float, float]  # the same in stored pixels


def prepare_image(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    """Check an image file and estimate its decoding cost, without decoding a pixel. The file is not
    copied.

    The result's `run` gives height × width × C pixels, C-contiguous, in the model's channel order
    (C = 1 for GREY), or raises ImageError. Its `unresized` gives an image that a device resizes to
    the same pixels.

    Raises PayloadTooLargeError over a limit, UnsupportedMediaTypeError for another format or an
    animation, and ImageError if the header shows that the file is empty, truncated or broken.
    """
    file = check_image(data, limits)
    cost, drawing = plan(file, preprocessing, limits)
    unresized = partial(_unresized, drawing, preprocessing)
    is_file = file.format is ImageFormat.JPEG
    laid_out = partial(_file, drawing, preprocessing) if is_file else None
    return Decoding(cost, drawing, unresized, file=laid_out)


def check_image(data: bytes, limits: ImageLimits) -> ImageFile:
    """Check that a file is within the limits, and return the facts in its header. Raises the errors
    of `prepare_image`."""
    if len(data) > limits.max_bytes:
        raise PayloadTooLargeError(
            f"the image has {len(data)} bytes, more than the {limits.max_bytes} allowed; "
            "send a smaller or more compressed image"
        )
    file = parse_image_file(data)
    if file.pixels > limits.max_pixels or max(file.width, file.height) > MAX_SIDE:
        raise PayloadTooLargeError(
            f"the image has {file.width}×{file.height} pixels, {megapixels(file.pixels)}; at most"
            f" {megapixels(limits.max_pixels)} (--max-megapixels) and {MAX_SIDE} pixels a side are"
            " allowed; send a smaller image"
        )
    if file.scans * file.pixels > limits.max_passes * limits.max_pixels:
        raise PayloadTooLargeError(
            f"the image has {file.width}×{file.height} pixels in {file.scans} scans; at most "
            f"{limits.max_passes * limits.max_pixels // file.pixels} scans are allowed at this"
            " size; save it as a baseline JPEG, or send a smaller image"
        )
    file.format.check_density(file.width, file.height, file.coded_bytes, file.least_bytes)
    return file


def parse_image_file(data: bytes) -> ImageFile:
    """Read the header of an image file, whose format is found by its first bytes.

    Raises UnsupportedMediaTypeError for an unsupported format or an animation, and ImageError for
    an empty, truncated or broken file. Decodes no pixel. The time is proportional to the number of
    segments in the file, which is limited.
    """
    try:
        return _parsed(data)
    except (ImageError, UnsupportedMediaTypeError) as error:
        if len(data) < _SURE or data[:_SURE].isascii() or any(byte in data for byte in _DROPPED):
            raise
        raise type(error)(
            "this file has no line breaks and no zero bytes, as if `curl -d` had removed them;"
            " send it whole with --data-binary @cat.jpg"
        ) from None


def _parsed(data: bytes) -> ImageFile:
    if not data:
        raise ImageError(f"the image is empty: send the bytes of a {FORMATS} file")
    if begun := ImageFormat.of(data):
        if not begun.is_read:
            raise UnsupportedMediaTypeError(
                f"this server cannot decode {begun.value}: install Convoy with the"
                f" extra `{begun.name.lower()}`, or send a {FORMATS} image"
            )
        return _PARSERS[begun](data)
    raise unread(data, f"send a {FORMATS} image")


def megapixels(pixels: int) -> str:
    """Return a number of pixels as text, in megapixels."""
    return f"{pixels / 1e6:.4g} megapixels"


def plan(
    file: ImageFile, preprocessing: Preprocessing, limits: ImageLimits
) -> tuple[Cost, Drawing]:
    """Return the cost of decoding a file whose header was checked, and the `Drawing` that decodes
    it. Raises PayloadTooLargeError."""
    # Training scripts do not look at the orientation.
    turned = REORIENTATIONS[1 if preprocessing.exact else file.orientation]
    sketch = _sketch(file.format, file.width, file.height, turned, preprocessing)
    if preprocessing.exact and math.prod(sketch.resized) > limits.max_pixels:
        raise PayloadTooLargeError(
            f"the image of {file.width}×{file.height} pixels is resized to "
            f"{sketch.resized[0]}×{sketch.resized[1]} before it is cropped; with exact = true "
            f"at most {megapixels(limits.max_pixels)} (--max-megapixels) are allowed; send an"
            " image that is closer to a square"
        )
    return _cost(file, sketch), Drawing(sketch, file.parts)


@lru_cache(maxsize=_SIZES)  # the images of a client have few sizes, mostly
def _sketch(
    kind: ImageFormat, width: int, height: int, turned: Reorientation, preprocessing: Preprocessing
) -> Sketch:
    """Return how to resize and crop images of this format, stored size and orientation."""
    geometry = _geometry(width, height, turned, preprocessing)
    bgr = preprocessing.channels is ChannelOrder.BGR
    padded = preprocessing.crop_mode is CropMode.PAD
    scaled = kind is ImageFormat.JPEG and not preprocessing.exact
    return Sketch(
        format=kind,
        stored=(width, height),
        resized=geometry.resized,
        crop=geometry.crop,
        box=geometry.box,
        filter=_FILTERS[preprocessing.interpolation],
        exact=preprocessing.exact,
        shrink=_shrink((width, height), geometry.resized) if scaled else 1,
        frame=(preprocessing.width, preprocessing.height),
        paper=preprocessing.paper[:: -1 if bgr else 1] if padded else None,
        reorientation=turned,
        grey=preprocessing.channels is ChannelOrder.GREY,
        reverse=bgr,
    )


def _shrink(stored: tuple[int, int], resized: tuple[int, int]) -> int:
    """Return the factor by which Pillow's decoder reduces a JPEG: 1, 2, 4 or 8."""
    fits = min(map(floordiv, stored, resized))
    return max(shrink for shrink in (1, 2, 4, 8) if shrink <= max(1, fits))


def _unresized(drawing: Drawing, preprocessing: Preprocessing) -> Image:
    """Decode an image that the device resizes. If the image is too large for the device, resize it
    on the CPU."""
    decoded = drawing.decoded()
    resize = _resize(drawing.sketch, preprocessing, decoded.how)
    if not resize.fits(*decoded.image.size, len(decoded.image.getbands())):
        return drawing.drawn(decoded)
    pixels = np.asarray(decoded.image)
    return DecodedImage(pixels.reshape(*pixels.shape[:2], -1), resize)


def _file(drawing: Drawing, preprocessing: Preprocessing) -> Image:
    """Return a JPEG file in the form that a device decodes. Raises NotForDeviceError."""
    sketch = drawing.sketch
    try:
        file = read_jpeg(drawing.parts)
        if sketch.grey and file.components > 1:  # Pillow makes it grey before it resizes it
            raise NotForDeviceError(Reason.COMPONENTS.value)
        eighths = 8 // sketch.shrink
        how = sketch.how(file.scaled(eighths), sketch.shrink)
        return JpegImage(file, eighths, _resize(sketch, preprocessing, how))
    except UnsuitableError as error:
        raise NotForDeviceError(error.reason.value) from error


def _resize(sketch: Sketch, preprocessing: Preprocessing, how: How) -> Resize:
    """Return the `Resize` that a device must apply to the decoded image."""
    paper = sketch.paper or (0,) * len(preprocessing.mean)
    order = -1 if sketch.reverse else 1
    return Resize(
        size=how.size,
        box=how.box,
        crop=how.crop,
        interpolation=preprocessing.interpolation,
        **sketch.reorientation._asdict(),
        frame=sketch.frame,
        channels=tuple(range(len(preprocessing.mean)))[::order],
        paper=paper[::order],
    )


def _geometry(
    width: int, height: int, reorientation: Reorientation, preprocessing: Preprocessing
) -> _Geometry:
    size, turned = (preprocessing.width, preprocessing.height), reorientation.transposed
    if turned:
        size = size[::-1]
    resized = _resized(width, height, preprocessing, turned=turned)
    offset = preprocessing.crop_offset
    across = _span(resized[0], size[0], offset, reverse=reorientation.x_reversed)
    down = _span(resized[1], size[1], offset, reverse=reorientation.y_reversed)
    left, right = (_stored(edge, resized[0], width) for edge in across)
    top, bottom = (_stored(edge, resized[1], height) for edge in down)
    crop = across[0], down[0], across[1], down[1]
    return _Geometry(resized, crop, (left, top, right, bottom))


def _resized(
    width: int, height: int, preprocessing: Preprocessing, *, turned: bool
) -> tuple[int, int]:
    """Return the width and height of the whole resized image before it is rotated, rounded as in
    training. `turned` says whether the image is stored rotated by 90°."""
    if preprocessing.crop_mode is CropMode.CROP:
        resize, shorter = preprocessing.resize, min(width, height)
        if preprocessing.longer_side is Rounding.DOWN:
            return resize * width // shorter, resize * height // shorter
        times = resize / shorter
        return round(width * times), round(height * times)
    within = preprocessing.resized
    if turned:
        within = within[::-1]
    if preprocessing.crop_mode is CropMode.SQUASH:
        return within
    times = max(width / within[0], height / within[1])  # as timm's ResizeKeepRatio
    return max(1, round(width / times)), max(1, round(height / times))


def _span(resized: int, cropped: int, offset: Rounding, *, reverse: bool) -> tuple[int, int]:
    """Return the two edges of a centre crop along one axis of the stored image, in pixels of the
    resized image. `offset` says how the offset of the crop in the upright image is rounded. With
    `reverse`, the axis of the stored image has the opposite direction."""
    left = resized - cropped
    first = max(0, left // 2 if offset is Rounding.DOWN else round(left / 2))
    last = min(resized, first + cropped)
    return (resized - last, resized - first) if reverse else (first, last)


def _stored(edge: int, resized: int, stored: int) -> float:
    """Convert the position of an edge from pixels of the resized image to pixels of the stored
    image. `resized` and `stored` are the lengths of the two images along this axis."""
    return min(edge * (stored / resized), stored)


def _cost(file: ImageFile, sketch: Sketch) -> Cost:
    weight = file.weight
    pixel_bytes = weight.held_bytes + weight.drawn_bytes / sketch.shrink**2
    if file.format is ImageFormat.JPEG and file.pixels <= turbo.MOST_PIXELS:
        pixel_bytes += turbo.BYTES / sketch.shrink**2
    coded_bytes = sum(map(len, file.parts))  # Pillow reads a joined copy
    if sketch.exact:
        coded_bytes += _RESIZED_BYTES * math.prod(sketch.resized)
    return Cost(int(file.pixels * pixel_bytes) + coded_bytes, file.pixels * weight.ns / 1e9)
