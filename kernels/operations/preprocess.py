"""Launches kernels/src/preprocess.cu, which makes a network's input as NHWC floats."""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, blocks_of_threads, instantiate, int32, launch
from kernels.layout.pixels import Pixels, vector_width
from kernels.layout.strided import VECTOR


def pixels_to_floats_launch(
    channels: int, pixels: int, y: Pixels, *, reverse: bool = False
) -> Launch:
    """Return a launch of y = pixel · multiplier + offset, from uint8 pixels of `channels` bytes to
    floats.

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


def pixels_to_bytes_launch(
    channels: int, n: int, size: tuple[int, int], y: Pixels, block: int = 1
) -> Launch:
    """Return a launch from n uint8 images of at most 4 channels to quantised pixels of y.

    Operands images, multiplier, offset, y as for `pixels_to_floats_launch`, whose floats are
    quantised as `quantize_launch` does. Pixels of block × block are one of y, each with 4 channels.
    Raises ValueError.
    """
    if channels > VECTOR or y.pitch < VECTOR * block * block or y.pitch % VECTOR or y.offset:
        raise ValueError(f"pixels of {channels} channels in blocks of {block} do not fit {y}")
    h, w = size
    if h % block or w % block:
        raise ValueError(f"{h}x{w} pixels are no whole number of blocks of {block}")
    int32(n * h * w * max(channels, y.pitch))
    return launch(
        instantiate("preprocess.cu", "pixels_to_bytes", channels=channels),
        *blocks_of_threads(n * h * w),
        images="images",
        multiplier="multiplier",
        offset="offset",
        y="y",
        pixels=n * h * w,
        columns=w // block,
        block=block,
        y_pitch=y.pitch,
        scale=y.stored.scale,
        zero=y.stored.zero_point,
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
