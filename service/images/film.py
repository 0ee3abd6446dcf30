"""Decodes clips: the frames, of several images or of an animation, that a model gets.

As `decode`, this imports no model, and can be sent to another process.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.errors import ImageError
from service.images.decode import DECODER_ERRORS, Drawing

Clip = NDArray[np.uint8]
"""D×H×W×C pixels."""


@dataclass(frozen=True, slots=True)
class StillFrames:
    """Describes a clip whose frames are images; calling it decodes them.

    `drawings` has each image that is needed, and `chosen` the place of each frame's in it.
    """

    drawings: Sequence[Drawing]
    chosen: Sequence[int]

    def __call__(self) -> Clip:
        """Return the clip. Raises ImageError."""
        drawn = [drawing() for drawing in self.drawings]
        return np.stack([drawn[place] for place in self.chosen])


@dataclass(frozen=True, slots=True)
class Animation:
    """Describes an animated file; calling it decodes its frames up to the last of `chosen`."""

    format: str  # Pillow's name
    data: memoryview
    frames: int  # that its header has
    chosen: Sequence[int]  # in order; perhaps some of them several times
    drawing: Drawing  # of each frame

    def __call__(self) -> Clip:
        """Return the clip. Raises ImageError."""
        try:
            with Image.open(io.BytesIO(self.data), formats=[self.format]) as image:
                # A PNG may have an image for programs that show no animation, which is no frame.
                extra = int(getattr(image, "default_image", False))
                count = getattr(image, "n_frames", 1) - extra
                if image.size != self.drawing.stored or count != self.frames:
                    raise ImageError(
                        f"the animated {self.format} contradicts itself; save it again"
                    )
                drawn = {
                    number: self._drawn(image, number + extra) for number in sorted({*self.chosen})
                }
        except DECODER_ERRORS as error:
            raise ImageError(
                f"the animated {self.format} cannot be decoded ({error}): it is truncated or"
                " broken; save it again"
            ) from error
        return np.stack([drawn[number] for number in self.chosen])

    def _drawn(self, image: Image.Image, number: int) -> NDArray[np.uint8]:
        image.seek(number)
        image.load()
        if image.size != self.drawing.stored:
            raise ImageError(
                f"frame {number + 1} of the animated {self.format} is larger than the animation;"
                " save it again"
            )
        return self.drawing.draw(image)

    def __reduce__(self) -> tuple[Callable[..., "Animation"], tuple[Any, ...]]:
        """Pickle the file as a buffer."""
        return _animation, (
            *(self.format, PickleBuffer(self.data), self.frames, self.chosen, self.drawing),
        )


def _animation(
    kind: str, data: Any, frames: int, chosen: Sequence[int], drawing: Drawing
) -> Animation:
    return Animation(kind, memoryview(data), frames, chosen, drawing)
