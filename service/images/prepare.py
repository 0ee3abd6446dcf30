"""Checks an image file, and what decoding it will cost: limits first, and no pixel decoded.

    parse_image_file ── limits ── geometry ─┬─ cost, which the pool reserves
                                            └─ Drawing (decode.py), which the pool runs

This takes microseconds. The crop and its size are computed here, with x and y as stored.
"""

from dataclasses import dataclass
from typing import NamedTuple

from models import ChannelOrder, Fit, Preprocessing
from service.errors import PayloadTooLargeError
from service.images.decode import TO_UPRIGHT, Drawing
from service.images.decode_pool import Cost, Decoding
from service.images.file import ImageFile, ImageFormat
from service.images.header import parse_image_file

# JPEG's own limit, and more than WebP's; a PNG 1 wide and 50 million high would cost gigabytes.
MAX_SIDE = 65_535

# EXIF orientations that exchange the axes, and that reverse the stored x or y axis.
_TURNED, _X_REVERSED, _Y_REVERSED = {5, 6, 7, 8}, {2, 3, 7, 8}, {3, 4, 6, 7}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Holds limits that are checked before anything is decoded."""

    max_bytes: int = 20 * 2**20  # of one file
    max_pixels: int = 25_000_000  # width × height as stored; classifiers look at 0.3 million
    max_passes: int = 20  # scans × pixels, in multiples of `max_pixels`; encoders write 6 to 18


class _Geometry(NamedTuple):
    """Holds sizes and crop for one file, with x and y as stored, not as upright."""

    resized: tuple[int, int]  # the whole image
    size: tuple[int, int]  # the crop, resized
    box: tuple[float, float, float, float]  # the crop in stored pixels: left, top, right, bottom


def prepare_image(data: bytes, preprocessing: Preprocessing, limits: ImageLimits) -> Decoding:
    """Check a JPEG, PNG or WebP file and estimate its decoding cost; decodes no pixel.

    Running the result gives height × width × C pixels, C-contiguous, in the model's channel order
    (C = 1 for GREY), or raises ImageError. Raises at once PayloadTooLargeError over a limit,
    UnsupportedMediaTypeError for another format or an animation, and ImageError where the header
    shows that the file is empty, truncated or broken. The file is not copied.
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
    drawing = Drawing(
        format=file.format,
        stored=(file.width, file.height),
        resized=geometry.resized,
        size=geometry.size,
        box=geometry.box,
        turn=TO_UPRIGHT.get(file.orientation),
        grey=preprocessing.channels is ChannelOrder.GREY,
        reverse=preprocessing.channels is ChannelOrder.BGR,
        parts=file.parts,
    )
    return Decoding(_cost(file, geometry), drawing)


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
    """Return the first and last stored pixel of a centre crop along one axis."""
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
