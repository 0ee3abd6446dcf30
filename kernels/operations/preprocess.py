"""Launches kernels/src/preprocess.cu, which makes a network's input as NHWC floats."""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, blocks_of_threads, instantiate, int32, launch
from kernels.layout.pixels import Pixels, vector_width


def pixels_to_floats_launch(
    channels: int, pixels: int, y: Pixels, *, reverse: bool = False
) -> Launch:
    """Return a launch from uint8 pixels of `channels` bytes to floats, pixel · multiplier + offset.

    Operands images, multiplier, offset (one number a channel of the output, in its order), y. With
    `reverse` the output's first channel is the image's last: RGB to BGR. Channels that y has beyond
    the image's become 0. Raises ValueError.
    """
    if y.channels < channels:
        raise ValueError(f"{channels} channels do not fit {y}")
    template: dict[str, TemplateArgument] = {
        "t": y.stored.element,
        "channels": channels,
        "padded": y.channels,
        "reversed": reverse,
        "v": vector_width(y),
    }
    int32(pixels * y.pitch)
    return launch(
        instantiate("preprocess.cu", "pixels_to_floats", **template),
        *blocks_of_threads(pixels),
        images="images",
        multiplier="multiplier",
        offset="offset",
        y="y",
        pixels=pixels,
        y_pitch=y.pitch,
    )


def planes_to_pixels_launch(channels: int, n: int, plane: int, y: Pixels) -> Launch:
    """Return a launch from contiguous N×C×(plane) floats to pixels: operands x, y.

    Channels that y has beyond the tensor's become 0. Raises ValueError.
    """
    if y.channels < channels:
        raise ValueError(f"{channels} channels do not fit {y}")
    v = vector_width(y)
    steps = n * plane * (y.channels // v)
    int32(n * plane * max(channels, y.pitch))
    return launch(
        instantiate("preprocess.cu", "planes_to_pixels", t=y.stored.element, v=v),
        *blocks_of_threads(steps),
        x="x",
        y="y",
        steps=steps,
        pixels=n * plane,
        plane=plane,
        channels=channels,
        y_pitch=y.pitch,
    )
