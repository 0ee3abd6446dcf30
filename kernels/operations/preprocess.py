"""Launches kernels/src/preprocess.cu, which writes a network's input as NHWC floats or bytes."""

from typing import NamedTuple

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, Value, blocks_of_threads, instantiate, int32, launch
from kernels.layout.pixels import Pixels, vector_width
from kernels.layout.strided import VECTOR


class Places(NamedTuple):
    """Describes a batch in which each image has a place of `pitch` bytes (kernels/image/place.py).

    Images that are sent as tensors are H×W×C if `channels_last` is true, and C×H×W if it is false.
    If `has_made` is true, resize.cu has resized the decoded images, and the operand `made` holds
    the resulting pixels.
    """

    pitch: int
    channels_last: bool = False
    has_made: bool = False

    def arguments(self, channels: int, area: int) -> dict[str, Value]:
        """Return the kernel arguments that describe the layout of the batch, for images of `area`
        pixels."""
        channel, pixel = (1, channels) if self.channels_last else (area, 1)
        return {
            "pitch": self.pitch,
            "area": area,
            "channel_stride": channel,
            "pixel_stride": pixel,
        }

    @property
    def operands(self) -> dict[str, Value]:
        """Return the kernel arguments that name the operands of the batch."""
        return {"entries": "entries", "made": "made" if self.has_made else 0}


_WEIGHTS: dict[str, Value] = {"multiplier": "multiplier", "offset": "offset"}


def to_floats_launch(
    channels: int, n: int, area: int, y: Pixels, places: Places | None = None
) -> Launch:
    """Return a launch of y = pixel · multiplier + offset. It converts n uint8 images of `area`
    pixels to floats.

    The operands are images, multiplier, offset and y. multiplier and offset have one number per
    channel of the image. With `places`, the launch reads the operands entries and `made` instead of
    images. If y has more channels than the images, the additional channels become 0. Raises
    ValueError if y has fewer channels, or if an index exceeds 32 bits.
    """
    if y.channels < channels:
        raise ValueError(f"{channels} channels of the image do not fit into pixels of {y}")
    template: dict[str, TemplateArgument] = {
        "t": y.stored.element,
        "channels": channels,
        "padded": y.channels,
        "v": vector_width(y),
    }
    int32(n * area * max(channels, y.pitch))
    if places is None:
        return launch(
            instantiate("preprocess.cu", "pixels_to_floats", **template),
            *blocks_of_threads(n * area),
            images="images",
            **_WEIGHTS,
            y="y",
            pixels=n * area,
            y_pitch=y.pitch,
        )
    (blocks, _, _), block = blocks_of_threads(area)
    return launch(
        instantiate("preprocess.cu", "places_to_floats", **template),
        (blocks, n, 1),
        block,
        **places.operands,
        **_WEIGHTS,
        y="y",
        **places.arguments(channels, area),
        y_pitch=y.pitch,
    )


def to_bytes_launch(
    channels: int,
    n: int,
    size: tuple[int, int],
    y: Pixels,
    side: int = 1,
    places: Places | None = None,
) -> Launch:
    """Return a launch that converts n uint8 images of at most 4 channels to quantized pixels.

    The launch has the operands of `to_floats_launch`, computes the same floats, and quantizes them
    like `quantize_launch`. A pixel of y holds side × side pixels of an image, with 4 channels each.
    Raises ValueError if y cannot hold the pixels in this way, or if an index exceeds 32 bits.
    """
    if channels > VECTOR or y.pitch < VECTOR * side * side or y.pitch % VECTOR or y.offset:
        raise ValueError(
            f"{side}×{side} pixels of {channels} channels do not fit into a pixel of {y}"
        )
    h, w = size
    if h % side or w % side:
        raise ValueError(f"height and width must be multiples of {side}, got {h}x{w}")
    int32(n * h * w * max(channels, y.pitch))
    written: dict[str, Value] = {
        "columns": w // side,
        "block": side,
        "y_pitch": y.pitch,
        "scale": y.stored.scale,
        "zero": y.stored.zero_point,
    }
    if places is None:
        return launch(
            instantiate("preprocess.cu", "pixels_to_bytes", channels=channels),
            *blocks_of_threads(n * h * w),
            images="images",
            **_WEIGHTS,
            y="y",
            pixels=n * h * w,
            **written,
        )
    (blocks, _, _), block = blocks_of_threads(h * w)
    return launch(
        instantiate("preprocess.cu", "places_to_bytes", channels=channels),
        (blocks, n, 1),
        block,
        **places.operands,
        **_WEIGHTS,
        y="y",
        **places.arguments(channels, h * w),
        **written,
    )
