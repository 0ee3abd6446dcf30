"""Decodes an image file whose header was checked, and resizes and crops the image in one step.

    Pillow decodes (a large JPEG at 1/2, 1/4 or 1/8) ── opaque RGB or grey ── resample ── upright

The output is the upright image, resized with one of Pillow's filters and cropped to the central
height × width. Only the pixels inside the crop are computed. The pixels differ by at most 1 grey
level from those of an image that is resized as a whole and then cropped. With the option `exact`,
the whole image is resized and then cropped, and a JPEG is decoded at full size.

Transparent pixels are drawn on white. With `exact`, transparency is dropped, as training scripts
do. Colour profiles are ignored, as in common training pipelines: the model gets the numbers in the
file. Thread-safe.

The module does not import the package `models`, so a process that only decodes starts in a third of
a second and takes 40 MB.
"""

import io
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, UnidentifiedImageError

from service.errors import ImageError
from service.images import turbo
from service.images.file import ImageFormat, Reorientation
from service.images.png import check_png

# Our limits apply before Pillow reads a file, so Pillow's own limit and warnings add nothing.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")

# Otherwise Pillow would import a format's reader at the first image of the format.
import_module("PIL.TiffImagePlugin")

# One thread decodes an image, because the other threads are for other images.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
if ImageFormat.HEIF.is_read:
    _plugin: Any = import_module(ImageFormat.HEIF.plugin)
    _plugin.register_heif_opener(
        decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
    )

# The errors that Pillow's readers raise for invalid bytes.
DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error)

# Pillow's modes of grey images.
_GREY = {"1", "L"}

_Transpose = Image.Transpose

# Pillow's names of transpositions. The key says: x reversed, y reversed, axes swapped.
_TRANSPOSES = {
    (True, False, False): _Transpose.FLIP_LEFT_RIGHT,
    (True, True, False): _Transpose.ROTATE_180,
    (False, True, False): _Transpose.FLIP_TOP_BOTTOM,
    (False, False, True): _Transpose.TRANSPOSE,
    (False, True, True): _Transpose.ROTATE_270,
    (True, True, True): _Transpose.TRANSVERSE,
    (True, False, True): _Transpose.ROTATE_90,
}


class How(NamedTuple):
    """Describes how to resize a decoded image. The rectangle `box` of the image is resized to
    `size`, and then cropped to the rectangle `crop`."""

    size: tuple[int, int]
    box: tuple[float, float, float, float]
    crop: tuple[int, int, int, int]


class StoredImage(NamedTuple):
    """Holds a decoded RGB or grey image, without transparency, before it is resized and rotated.
    Also holds how to resize it."""

    image: Image.Image
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Describes how to compute a model's input from images of one format and size. x and y refer to
    the image as stored in the file, before any rotation."""

    format: ImageFormat
    stored: tuple[int, int]  # width and height
    resized: tuple[int, int]  # the whole image
    crop: tuple[int, int, int, int]  # in resized pixels: left, top, right, bottom
    box: tuple[float, float, float, float]  # the same in stored pixels
    filter: Image.Resampling
    exact: bool  # the same bits as resizing all of the image and then cropping it
    shrink: int  # how many times smaller a JPEG is decoded: 1, 2, 4 or 8; 1 of another format
    frame: tuple[int, int]  # width and height of the result
    paper: tuple[int, ...] | None  # the colour around a smaller image; None: it fills the frame
    reorientation: Reorientation  # from stored to upright
    grey: bool  # one channel
    reverse: bool  # the channels are BGR

    @property
    def mode(self) -> str:
        """Return Pillow's mode of the output, "L" or "RGB"."""
        return "L" if self.grey else "RGB"

    def draw(self, frame: Image.Image) -> NDArray[np.uint8]:
        """Return the model's input for an image that was decoded at its full size."""
        return self.pixels(self.upright(self.opaque(frame)))

    def opaque(self, image: Image.Image, shrink: float = 1.0) -> StoredImage:
        """Return a decoded image without transparency, and how to resize it. The decoder has
        divided the image's width and height by `shrink`."""
        opaque = (_converted if self.exact else _opaque)(image, self.mode)
        return StoredImage(opaque, self.how(opaque.size, shrink))

    def how(self, decoded: tuple[int, int], shrink: float) -> How:
        """Return how to resize an image that was decoded at the size `decoded`. The decoder has
        divided the image's width and height by `shrink`."""
        if self.exact:
            return How(self.resized, (0.0, 0.0, *decoded), self.crop)
        left, top, right, bottom = self.crop
        x0, y0, x1, y1 = (edge / shrink for edge in self.box)
        size = right - left, bottom - top
        return How(size, (x0, y0, x1, y1), (0, 0, *size))

    def upright(self, decoded: StoredImage) -> Image.Image:
        """Resize a decoded image, crop it and rotate it upright. If it is smaller than the model's
        input, add a border."""
        small = decoded.image.resize(decoded.how.size, self.filter, box=decoded.how.box)
        if self.exact:
            small = small.crop(decoded.how.crop)
        # The image is resized before it is turned, because turning few pixels is cheap.
        turned = (
            small.transpose(_TRANSPOSES[self.reorientation]) if any(self.reorientation) else small
        )
        upright = _converted(turned, self.mode)
        return upright if self.paper is None else self._framed(upright, self.paper)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return an upright image as height × width × C pixels, C-contiguous."""
        # Pillow reverses the channels while it copies the bytes, five times faster than NumPy.
        order = "BGR" if self.reverse else image.mode
        pixels = np.frombuffer(image.tobytes("raw", order), np.uint8)
        return pixels.reshape(image.height, image.width, -1)

    def _framed(self, image: Image.Image, paper: tuple[int, ...]) -> Image.Image:
        framed = Image.new(image.mode, self.frame, paper[0] if self.grey else paper)
        left, top = (
            (outer - inner) // 2 for outer, inner in zip(self.frame, image.size, strict=True)
        )
        framed.paste(image, (left, top))
        return framed


@dataclass(frozen=True, slots=True)
class Drawing:
    """Holds an image file whose header was checked, and how to resize its image. Calling the object
    decodes the file.

    The object can be pickled. The parts of the file become buffers, which pickle protocol 5 does
    not copy.
    """

    sketch: Sketch
    parts: Sequence[memoryview]  # of the file, which affect pixels

    def __call__(self) -> NDArray[np.uint8]:
        """Return height × width × C pixels, C-contiguous. Raises ImageError."""
        try:
            image = self.sketch.upright(self._decoded())
        except DECODER_ERRORS as error:
            raise self._broken(error) from error
        return self.sketch.pixels(image)

    def decoded(self) -> StoredImage:
        """Return the decoded image before it is resized and rotated. Raises ImageError."""
        try:
            return self._decoded()
        except DECODER_ERRORS as error:
            raise self._broken(error) from error

    def drawn(self, decoded: StoredImage) -> NDArray[np.uint8]:
        """Resize an image that `decoded` has returned. Return the same pixels as calling the
        object. Raises ImageError."""
        try:
            image = self.sketch.upright(decoded)
        except DECODER_ERRORS as error:
            raise self._broken(error) from error
        return self.sketch.pixels(image)

    def __reduce__(self) -> tuple[Callable[..., "Drawing"], tuple[Any, ...]]:
        """Pickle the parts of the file as buffers, which are not copied."""
        return _drawing, (self.sketch, [PickleBuffer(part) for part in self.parts])

    def _broken(self, error: Exception) -> ImageError:
        """Return the error to raise in place of Pillow's error."""
        # Only this message of Pillow says nothing useful: it names the buffer.
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        return ImageError(
            f"the {self.sketch.format.value} cannot be decoded{reason}: it is truncated or broken; "
            "save the image again"
        )

    def _decoded(self) -> StoredImage:
        sketch = self.sketch
        if sketch.format is ImageFormat.PNG:
            check_png(self.parts)
        data = b"".join(self.parts)
        if sketch.format is ImageFormat.JPEG:
            quick = turbo.decode(data, sketch.stored, sketch.shrink)
            if quick is not None:
                return sketch.opaque(quick, sketch.shrink)
        with Image.open(io.BytesIO(data), formats=[sketch.format.name]) as image:
            if image.size != sketch.stored or getattr(image, "n_frames", 1) != 1:
                raise ImageError(
                    f"the {sketch.format.value} does not match its header; save the image again"
                )
            # Decoding a JPEG at 1/2, 1/4 or 1/8 takes less time; the result must not be smaller
            # than needed.
            draft = None if sketch.exact else image.draft(None, sketch.resized)
            shrink = sketch.stored[0] / draft[1][2] if draft else 1.0
            image.load()
            return sketch.opaque(image, shrink)


def _drawing(sketch: Sketch, parts: Sequence[Any]) -> Drawing:
    return Drawing(sketch, [memoryview(part) for part in parts])


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """Return a decoded image as RGB, with transparent pixels drawn on white. A grey image becomes
    Pillow's mode L, which takes less memory."""
    if image.mode.startswith("I;16"):  # keep the high byte, as Pillow does for 16-bit colour
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = _converted(image, "RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image)
        image = paper
    return _converted(image, "L" if image.mode in _GREY else mode)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    # `convert` would copy an image that already has the mode: 200 MB for 50 megapixels.
    return image if image.mode == mode else image.convert(mode)


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return H×W×C pixels, grey or RGB, as a PNG file without compression, which is fast to
    create."""
    image = Image.fromarray(np.ascontiguousarray(pixels.squeeze()))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=0)
    return file.getvalue()
