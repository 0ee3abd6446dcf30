"""Images whose decoding or scoring causes a fault, such as `b"decoder raises"` and `b"engine
hangs"`."""

import sys
import time
from collections.abc import Callable

import numpy as np

from models import (
    ChannelOrder,
    CropMode,
    EngineError,
    Images,
    Interpolation,
    Layout,
    OutputKind,
    Pixels,
    Preprocessing,
    Scores,
)
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from tests.support.service.fakes import CLASSES, decode_digit, free, one_hot

SLOW_S = 0.6
HANG_S = 6.0  # longer than the server waits for a hang; then its thread ends


def _raise(error: BaseException) -> None:
    raise error


def _recurse() -> None:
    _recurse()


def _fail(error: Exception) -> Scores:
    raise error


def _slowly(images: Images, seconds: float = SLOW_S) -> Scores:
    time.sleep(seconds)
    return _digits(images)


def _digits(images: Images) -> Scores:
    return one_hot(np.where(images < CLASSES, images, 0))


# A picture that begins with the key, and what the decoder does with it.
_DECODER: dict[bytes, Callable[[], object]] = {
    b"decoder raises": lambda: _raise(KeyError("unforeseen")),
    b"decoder raises SystemExit": lambda: sys.exit(3),
    b"decoder raises StopIteration": lambda: next(iter(())),
    b"decoder raises KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    b"decoder is out of memory": lambda: _raise(MemoryError()),
    b"decoder raises RecursionError": _recurse,
    b"decoder is slow": lambda: time.sleep(SLOW_S),
    b"decoder hangs": lambda: time.sleep(HANG_S),
}

_BREAKS = b"engine breaks"


def _no_numbers(images: Images) -> Scores:
    return np.full((len(images), CLASSES), np.nan, np.float32)


# The engine knows a picture by its one pixel; these are no digits.
_ENGINE: dict[bytes, Callable[[Images], Scores]] = {
    b"engine raises": lambda _: _fail(EngineError("the device fell off the bus")),
    b"engine raises another error": lambda _: _fail(IndexError("unforeseen")),
    b"engine is out of memory": lambda _: _fail(MemoryError()),
    b"engine raises SystemExit": lambda _: sys.exit(3),
    b"engine raises StopIteration": lambda _: next(iter(())),
    b"engine returns too few scores": lambda images: _digits(images)[1:],
    b"engine returns another number of classes": lambda images: _digits(images)[:, :3],
    b"engine returns None": lambda _: None,  # type: ignore[dict-item, return-value]
    b"engine returns NaN": _no_numbers,
    _BREAKS: _no_numbers,
    b"engine is slow": _slowly,
    b"engine hangs": lambda images: _slowly(images, HANG_S),
}
_ONE_PIXEL = Preprocessing(
    height=1,
    width=1,
    crop_mode=CropMode.SQUASH,
    resize=1,
    interpolation=Interpolation.BILINEAR,
    channels=ChannelOrder.GREY,
    layout=Layout.NCHW,
    scale=1.0,
    mean=(0.0,),
    std=(1.0,),
    output=OutputKind.LOGITS,
    labels=(),
)
_PIXELS = {name: 100 + number for number, name in enumerate(_ENGINE)}


def prepare_faulty(data: bytes) -> Decoding:
    """Prepare a real image (a black image shows a 0), or a name that `faulty_decode` knows."""
    if data.startswith((b"\xff\xd8\xff", b"\x89PNG", b"RIFF")):
        return prepare_image(data, _ONE_PIXEL, ImageLimits())
    return _prepare_free(data)


def faulty_decode(data: bytes) -> Pixels:
    """Decode a digit, or cause the fault that the data names."""
    if data in _PIXELS:
        return np.full((1, 1, 1), _PIXELS[data], np.uint8)
    if data in _DECODER:
        _DECODER[data]()
        return decode_digit(b"0")
    return decode_digit(data)


_prepare_free = free(faulty_decode)


class FaultyScores:
    """Scores digits for one engine. After an image has broken the engine, it returns only NaN."""

    def __init__(self) -> None:
        self._broken = False

    def __call__(self, images: Images) -> Scores:
        """Score a batch."""
        self._broken = self._broken or bool((images == _PIXELS[_BREAKS]).any())
        return _no_numbers(images) if self._broken else _scores(images)


def _scores(images: Images) -> Scores:
    """Return scores for the digits. If an image names a fault, cause this fault for all images."""
    pixels = set(images[:, 0, 0, 0].tolist())
    for name, pixel in _PIXELS.items():
        if pixel in pixels:
            return _ENGINE[name](images)
    return one_hot(images)
