"""Computes which part of an image a model sees, and draws heat maps over that part."""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.images.decode import Drawing
from service.images.decode_pool import Decoding

# The longer side of an overlay, which is smooth and is stretched to the image; creating its PNG
# takes milliseconds.
_SIDE = 320

# Colours of a map from its least to its largest value: red, green, blue and opacity.
_STOPS = np.array(
    [(0, 0, 128, 0), (0, 80, 255, 70), (0, 220, 160, 130), (255, 220, 0, 180), (230, 0, 0, 210)]
)
_COLOURS = np.stack(
    [np.interp(np.linspace(0, len(_STOPS) - 1, 256), range(len(_STOPS)), c) for c in _STOPS.T], 1
).astype(np.uint8)


class View(NamedTuple):
    """Describes which part of an image a model sees. `box` is the model's input as a rectangle in
    the image."""

    size: tuple[int, int]  # width and height of the upright image
    box: tuple[float, float, float, float]  # left, top, right, bottom in it; perhaps beyond it


def view_of(decoding: Decoding) -> View:
    """Return the part of an image that the model sees, for a file that `prepare_image` prepared."""
    drawing = decoding.run
    if not isinstance(drawing, Drawing):
        raise TypeError(f"expected a Drawing but got {type(drawing).__name__}")
    sketch = drawing.sketch
    left, top, right, bottom = sketch.crop
    size, (width, height), reorientation = sketch.stored, sketch.resized, sketch.reorientation
    if reorientation.x_reversed:
        left, right = width - right, width - left
    if reorientation.y_reversed:
        top, bottom = height - bottom, height - top
    across, down = (left, right, width), (top, bottom, height)
    if reorientation.transposed:
        across, down, size = down, across, size[::-1]
    x0, x1 = _stretched(*across, sketch.frame[0], size[0])
    y0, y1 = _stretched(*down, sketch.frame[1], size[1])
    return View(size, (x0, y0, x1, y1))


def _stretched(first: int, last: int, resized: int, frame: int, own: int) -> tuple[float, float]:
    """Return the first and last edge of the model's input along one axis, in pixels of the original
    image. The image has `own` pixels along this axis.

    The pixels `first` to `last` of the resized image are in the middle of the input, which has
    `frame` pixels.
    """
    begin = first - (frame - (last - first)) // 2
    return begin * own / resized, (begin + frame) * own / resized


def overlay(values: NDArray[np.float32], view: View) -> bytes:
    """Return an H×W map of values as a coloured PNG to lay over the image. The PNG has the image's
    proportions, and is transparent outside the model's input."""
    scale = min(1.0, _SIDE / max(view.size))
    width, height = (max(1, round(side * scale)) for side in view.size)
    left, top, right, bottom = (round(edge * scale) for edge in view.box)
    least, spread = values.min(), np.ptp(values)
    parts = (values - least) / spread if spread > 0 else np.zeros_like(values)
    levels = Image.fromarray((255 * parts).astype(np.uint8))
    inner = max(1, right - left), max(1, bottom - top)
    colours = _COLOURS[np.asarray(levels.resize(inner, Image.Resampling.BICUBIC))]
    whole = Image.new("RGBA", (width, height))
    whole.paste(Image.fromarray(colours), (left, top))
    file = io.BytesIO()
    whole.save(file, "PNG", compress_level=1)
    return file.getvalue()
