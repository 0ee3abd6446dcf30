"""Launches kernels/src/quantize.cu, whose kernels compute with 8-bit tensors between convolutions.

Each function raises ValueError if shapes do not match, or if an index exceeds 32 bits.
"""

from dataclasses import replace
from math import inf

import numpy as np

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, Value, blocks_of_threads, instantiate, int32, launch
from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor, walk
from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.precision import BYTE, Storage

_ROWS = 8
"""Warps of a block of `global_average`, 256 threads in all."""

_LANES = 32


def quantize_launch(x: StridedTensor, y: StridedTensor) -> Launch:
    """Return a launch that converts the operand x to quantized bytes, the operand y. x has floats,
    halves, or bytes with another scale."""
    if x.stored.dtype == BYTE.dtype:
        scales: dict[str, Value] = {
            "x_scale": x.stored.scale,
            "x_zero": x.stored.zero_point,
            "scale": y.stored.scale,
            "zero": y.stored.zero_point,
        }
        return _launch("requantize", {}, {"x": x}, y, scales)
    return _converting("quantize", {"x": x.stored.element}, x, y, y.stored)


def blocks_of(
    x: StridedTensor, y: StridedTensor, block: int
) -> tuple[StridedTensor, StridedTensor]:
    """Return x and y with split axes, so that both have the same shape. x is N×C×H×W, with C at
    most 4. A pixel of y holds a square of block × block pixels of x (space to depth).

    In a pixel of y, these pixels of x follow each other row by row. Each takes up 4 channels of y.
    """
    if block == 1:
        return x, y
    n, c, h, w = x.shape
    shape = (n, block, block, c, h // block, w // block)
    image, channel, row, column = x.strides
    y_image, y_channel, y_row, y_column = y.strides
    return (
        replace(x, shape=shape, strides=(image, row, column, channel, row * block, column * block)),
        replace(
            y,
            shape=shape,
            strides=(y_image, 4 * block * y_channel, 4 * y_channel, y_channel, y_row, y_column),
        ),
    )


def dequantize_launch(x: StridedTensor, y: StridedTensor) -> Launch:
    """Return a launch that converts quantized bytes to floats or halves, with the operands x and
    y."""
    return _converting("dequantize", {"y": y.stored.element}, x, y, x.stored)


def add_launch(
    a: StridedTensor, b: StridedTensor, y: StridedTensor, activation: Activation | None = None
) -> Launch:
    """Return a launch of y = activation(a + b) on bytes, with the operands a, b and y. Only
    activations that clamp, such as ReLU, are supported."""
    least, most = clamped(y.stored, activation)
    scalars: dict[str, Value] = {
        "left_zero": a.stored.zero_point,
        "left_step": step_of(a.stored, y.stored),
        "right_zero": b.stored.zero_point,
        "right_step": step_of(b.stored, y.stored),
        "least": least,
        "most": most,
        "y_zero": y.stored.zero_point,
    }
    made = _launch("add", {}, {"left": a, "right": b}, y, scalars)
    return made.renamed({"left": "a", "right": "b"})


def global_average_launch(n: int, pixels: int, x: Pixels, y: Pixels) -> Launch:
    """Return a launch that averages all pixels of each of n images of bytes, with the operands x
    and y. Each image has `pixels` pixels."""
    if x.channels != y.channels:
        raise ValueError(f"y must have x's {x.channels} channels, got {y.channels}")
    int32(n * pixels * x.pitch)
    int32(255 * pixels)
    # In this order and in float32, as ONNX Runtime computes it.
    step = np.float32(x.stored.scale) / (np.float32(y.stored.scale) * np.float32(pixels))
    return launch(
        instantiate("quantize.cu", "global_average", rows=_ROWS),
        (-(-x.channels // _LANES), n, 1),
        (_LANES, _ROWS, 1),
        x="x",
        y="y",
        channels=x.channels,
        pixels=pixels,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
        x_zero=x.stored.zero_point,
        step=float(step),
        y_zero=y.stored.zero_point,
    )


def _converting(
    kernel: str,
    template: dict[str, TemplateArgument],
    x: StridedTensor,
    y: StridedTensor,
    stored: Storage,
) -> Launch:
    scalars: dict[str, Value] = {"scale": stored.scale, "zero": stored.zero_point}
    return _launch(kernel, template, {"x": x}, y, scalars)


def _launch(
    kernel: str,
    template: dict[str, TemplateArgument],
    read: dict[str, StridedTensor],
    y: StridedTensor,
    scalars: dict[str, Value],
) -> Launch:
    steps = walk(y, *(tensor.broadcast(y.shape) for tensor in read.values()))
    return launch(
        instantiate("quantize.cu", kernel, **template, rank=steps.rank, v=steps.v),
        *blocks_of_threads(steps.steps),
        **{name: name for name in (*read, "y")},
        walk=steps.struct(),
        **scalars,
    )


def clamped(y: Storage, activation: Activation | None = None) -> tuple[int, int]:
    """Return the bounds to which a kernel clamps round(number / y.scale). The bounds are
    `y.bounds`, or closer bounds if the activation clamps too.

    Raises ValueError for an activation that does more than clamp.
    """
    low, high = -inf, inf
    if activation is not None:
        if not clamps(activation):
            raise ValueError(
                "an 8-bit operation supports only activations that clamp, such as ReLU,"
                f" got {activation}"
            )
        is_clip = activation.kind is ActivationKind.CLIP
        low, high = (activation.a, activation.b) if is_clip else (0.0, inf)
    least, most = y.bounds
    steps = [np.float32(bound) / np.float32(y.scale) for bound in (low, high)]
    lower, upper = (int(np.rint(np.clip(step, least, most))) for step in steps)
    return min(lower, upper), upper  # of bounds that cross, the upper one holds


def clamps(activation: Activation | None) -> bool:
    """Return whether an activation only clamps its input."""
    return activation is None or activation.kind in (ActivationKind.CLIP, ActivationKind.RELU)


def step_of(x: Storage, y: Storage) -> float:
    """Return x's scale divided by y's scale, computed in float32."""
    return float(np.float32(x.scale) / np.float32(y.scale))
