"""Keeps recent images and their scores, to compare a model's new version with the old one.

An image is kept as it arrived: as a file, which each version decodes in its own way, or as pixels
or a tensor.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models import Array
from service.images.clip import Frames

# The most images, their bytes in all and each, and the seconds between two images. At any request
# rate, the images are from the last seconds, and keeping them costs hardly any time.
MOST_IMAGES = 64
_MOST_BYTES = 2**24
_MOST_BYTES_EACH = 2**22
_EVERY_S = 0.05


class Example(NamedTuple):
    """Holds an image and the scores that a model gave it."""

    image: bytes | Frames | Array
    scores: NDArray[np.float32]

    @property
    def bytes(self) -> int:
        """Return the size of the image."""
        image = self.image
        return image.nbytes if isinstance(image, np.ndarray) else len(image)


class Recent:
    """Keeps the most recent images and scores of one version of a model. Not thread-safe: use it
    from one event loop."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._examples = deque(filter(_is_answer, examples))
        self._bytes = sum(example.bytes for example in self._examples)
        self._next = 0.0

    @property
    def examples(self) -> Sequence[Example]:
        """Return the examples, oldest first."""
        return tuple(self._examples)

    def chosen(
        self, images: Sequence[bytes | Frames | Array], now: float
    ) -> bytes | Frames | Array | None:
        """Return a copy of a request's first image, or None if the image is too large or if another
        image was chosen shortly before `now`, in seconds."""
        if now < self._next or not images:
            return None
        image = images[0]
        size = image.nbytes if isinstance(image, np.ndarray) else len(image)
        if size > _MOST_BYTES_EACH:
            return None
        self._next = now + _EVERY_S
        if isinstance(image, Frames):
            return image
        # The image may be a view of a body, or of memory that the client shares.
        return image.copy() if isinstance(image, np.ndarray) else bytes(image)

    def add(self, image: "bytes | Frames | Array", scores: NDArray[np.float32]) -> None:
        """Keep an image with its scores, and drop the oldest images if there are too many.

        If a score is not finite, the image is not kept, because its scores cannot be compared.
        """
        example = Example(image, scores.copy())
        if not _is_answer(example):
            return
        self._examples.append(example)
        self._bytes += example.bytes
        while len(self._examples) > MOST_IMAGES or self._bytes > _MOST_BYTES:
            self._bytes -= self._examples.popleft().bytes


def _is_answer(example: Example) -> bool:
    return bool(np.isfinite(example.scores).all())
