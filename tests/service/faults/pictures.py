"""Pictures that bring about a fault where they get to: `b"decoder raises"`, `b"engine hangs"`."""

import sys
import time
from collections.abc import Callable

import numpy as np

from models import EngineError, Images, Scores
from service.runner import Pixels
from tests.service.fakes import CLASSES, decode_digit, one_hot

SLOW_S = 0.6
HANG_S = 4.0  # longer than a hang is waited for, which is a second; then its thread ends


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
    b"decoder exits": lambda: sys.exit(3),
    b"decoder stops iterating": lambda: next(iter(())),
    b"decoder is interrupted": lambda: _raise(KeyboardInterrupt()),
    b"decoder is out of memory": lambda: _raise(MemoryError()),
    b"decoder recurses": _recurse,
    b"decoder is slow": lambda: time.sleep(SLOW_S),
    b"decoder hangs": lambda: time.sleep(HANG_S),
}

# The engine knows a picture by its one pixel; these are no digits.
_ENGINE: dict[bytes, Callable[[Images], Scores]] = {
    b"engine raises": lambda _: _fail(EngineError("the device fell off the bus")),
    b"engine raises another error": lambda _: _fail(IndexError("unforeseen")),
    b"engine is out of memory": lambda _: _fail(MemoryError()),
    b"engine exits": lambda _: sys.exit(3),
    b"engine stops iterating": lambda _: next(iter(())),
    b"engine gives too few": lambda images: _digits(images)[1:],
    b"engine gives other classes": lambda images: _digits(images)[:, :3],
    b"engine gives nothing": lambda _: None,  # type: ignore[dict-item, return-value]
    b"engine gives no numbers": lambda images: np.full((len(images), CLASSES), np.nan, np.float32),
    b"engine is slow": _slowly,
    b"engine hangs": lambda images: _slowly(images, HANG_S),
}
_PIXELS = {name: 100 + number for number, name in enumerate(_ENGINE)}


def faulty_decode(data: bytes) -> Pixels:
    """Digits, and what goes wrong."""
    if data in _PIXELS:
        return np.full((1, 1, 1), _PIXELS[data], np.uint8)
    if data in _DECODER:
        _DECODER[data]()
        return decode_digit(b"0")
    return decode_digit(data)


def faulty_scores(images: Images) -> Scores:
    """Each digit's class, and what the first picture that is no digit brings about for all."""
    pixels = set(images[:, 0, 0, 0].tolist())
    for name, pixel in _PIXELS.items():
        if pixel in pixels:
            return _ENGINE[name](images)
    return one_hot(images)
