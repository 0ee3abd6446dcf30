"""Decodes the frames that a model gets from a clip. A clip is several images, an animation or a
video.

The module does not import the package `models`, so that a process that only decodes starts quickly.
The objects of this module can be sent to such a process.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pickle import PickleBuffer
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.errors import ImageError, PayloadTooLargeError, UnsupportedMediaTypeError
from service.images.decode import DECODER_ERRORS, Drawing, Sketch

Clip = NDArray[np.uint8]
"""The pixels of a clip, D×H×W×C."""


@dataclass(frozen=True, slots=True)
class StillFrames:
    """Describes a clip whose frames are image files. Calling the object decodes them.

    `drawings` has each image once. For each frame that the model gets, `chosen` has an index into
    `drawings`.
    """

    drawings: Sequence[Drawing]
    chosen: Sequence[int]

    def __call__(self) -> Clip:
        """Return the pixels of the clip. Raises ImageError."""
        drawn = [drawing() for drawing in self.drawings]
        return np.stack([drawn[index] for index in self.chosen])


@dataclass(frozen=True, slots=True)
class Animation:
    """Describes an animated GIF, WebP or PNG file. Calling the object decodes its frames up to the
    last frame that the model gets."""

    format: str  # Pillow's name
    data: memoryview
    frames: int  # that its header has
    chosen: Sequence[int]  # in order; perhaps some of them several times
    sketch: Sketch  # of each frame

    def __call__(self) -> Clip:
        """Return the pixels of the clip. Raises ImageError."""
        try:
            with Image.open(io.BytesIO(self.data), formats=[self.format]) as image:
                # A PNG may have an image for programs that show no animation. That image is not a
                # frame.
                extra = int(getattr(image, "default_image", False))
                count = getattr(image, "n_frames", 1) - extra
                if image.size != self.sketch.stored or count != self.frames:
                    raise ImageError(
                        f"the animated {self.format} does not match its header; save it again"
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
        if image.size != self.sketch.stored:
            raise ImageError(
                f"frame {number + 1} of the animated {self.format} is larger than the animation;"
                " save it again"
            )
        return self.sketch.draw(image)

    def __reduce__(self) -> tuple[Callable[..., "Animation"], tuple[Any, ...]]:
        """Pickle the file as a buffer, which is not copied."""
        return _animation, (
            *(self.format, PickleBuffer(self.data), self.frames, self.chosen, self.sketch),
        )


def _animation(
    kind: str, data: Any, frames: int, chosen: Sequence[int], sketch: Sketch
) -> Animation:
    return Animation(kind, memoryview(data), frames, chosen, sketch)


# What a decoder may make of a frame: at most three bytes per pixel, of four colours or grey.
_PIXEL_FORMATS = frozenset(
    f"{kind}{bits}"
    for kind, depths in {
        "yuv420p": ("", "10le"),
        "yuv422p": ("",),
        "yuv444p": ("",),
        "yuvj420p": ("",),
        "yuvj422p": ("",),
        "yuvj444p": ("",),
        "gbrp": ("",),
        "gray": ("", "10le"),
    }.items()
    for bits in depths
)

# Decoders work on blocks. The last block in a row may lie partly outside the frame.
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Film:
    """Describes a video. Calling the object decodes its frames with FFmpeg, up to the last frame
    that the model gets."""

    decoder: str  # FFmpeg's name
    setup: memoryview
    packets: Sequence[memoryview]  # in the order of their decoding
    chosen: Sequence[int]  # in order; perhaps some of them several times
    sketch: Sketch  # of each frame
    longest_s: float  # of this thread's time

    def __call__(self) -> Clip:
        """Return the pixels of the clip.

        Raises ImageError, UnsupportedMediaTypeError for an unsupported pixel format,
        PayloadTooLargeError if decoding takes too long, and MemoryError.
        """
        # Imported here, because PyAV is large and seldom needed.
        av = import_module("av")
        drawn: dict[int, NDArray[np.uint8]] = {}
        count, wanted = 0, {*self.chosen}
        try:
            for count, frame in enumerate(self._frames(av), 1):
                if count - 1 in wanted:
                    drawn[count - 1] = self.sketch.draw(frame.to_image(threads=1))
                    if len(drawn) == len(wanted):
                        return np.stack([drawn[number] for number in self.chosen])
        except MemoryError:  # FFmpeg's too; who limits the memory knows what to say
            raise
        except (av.FFmpegError, *DECODER_ERRORS) as error:
            reason = getattr(error, "strerror", None) or error  # without FFmpeg's number of it
            raise ImageError(
                f"frame {count + 1} of the video cannot be decoded ({reason}): it is truncated or"
                " broken; save it again"
            ) from error
        raise ImageError(
            f"the video ends after {count} frames, but its header states more: it is truncated"
            " or broken; save it again"
        )

    def _frames(self, av: Any) -> Iterator[Any]:
        """Yield the frames in the order in which they are shown."""
        width, height = (-(-side // _BLOCK) * _BLOCK for side in self.sketch.stored)
        context = av.CodecContext.create(self.decoder, "r")
        context.thread_count = 1
        context.options = {"max_pixels": str(width * height), "err_detect": "explode"}
        if self.setup:
            context.extradata = bytes(self.setup)
        until = thread_time() + self.longest_s
        for data in (*self.packets, None):  # None: return the frames that the decoder still holds
            for frame in context.decode(None if data is None else av.Packet(data)):
                self._check(frame)
                yield frame
            if thread_time() > until:
                raise PayloadTooLargeError(
                    f"decoding the video took more than the {self.longest_s:.0f} s that its size"
                    " allows; send a smaller or shorter video"
                )

    def _check(self, frame: Any) -> None:
        if (frame.width, frame.height) != self.sketch.stored:
            raise ImageError(
                f"a frame of the video has {frame.width}×{frame.height} pixels, but its header says"
                f" {self.sketch.stored[0]}×{self.sketch.stored[1]}; save it again"
            )
        if frame.format.name not in _PIXEL_FORMATS:
            raise UnsupportedMediaTypeError(
                f"the video has the unsupported pixel format {frame.format.name};"
                " save it as yuv420p"
            )
        if frame.is_corrupt:
            raise ImageError("a frame of the video is broken; save it again")

    def __reduce__(self) -> tuple[Callable[..., "Film"], tuple[Any, ...]]:
        """Pickle the coded frames as buffers, which are not copied."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        packets = [PickleBuffer(packet) for packet in self.packets]
        return _film, (values | {"setup": bytes(self.setup), "packets": packets},)


def _film(values: dict[str, Any]) -> Film:
    packets = [memoryview(packet) for packet in values["packets"]]
    return Film(**values | {"setup": memoryview(values["setup"]), "packets": packets})
