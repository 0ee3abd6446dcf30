"""Launches of kernels/src/elementwise.cu: copies, activations, binary operations, scale and shift.

Tensors may have any strides, and axes in any order as long as it is the same for all of one launch.
All but the output broadcast. The output may lie where an operand of the same strides lies. Each
function raises ValueError for shapes that do not go together and tensors beyond 32-bit indices.
"""

import numpy as np

from kernels.device.device import Argument, TemplateArgument
from kernels.device.launch import Launch, blocks_of_threads, instantiate
from kernels.layout.strided import Strided, walk
from kernels.problems.activation import Activation
from kernels.problems.binary_operation import BinaryOp


def activation_name(activation: Activation | None) -> str:
    """The enumerator in common.cuh."""
    return f"Activation::{activation.kind.name if activation else 'NONE'}"


def activation_arguments(activation: Activation | None) -> tuple[Argument, Argument]:
    """`a` and `b`, which a kernel with an activation takes last."""
    if activation is None:
        return np.float32(0), np.float32(0)
    return np.float32(activation.a), np.float32(activation.b)


def map_launch(x: Strided, y: Strided, activation: Activation | None = None) -> Launch:
    """y = activation(x): operands x, y. Without an activation a copy, of any strides to any."""
    return _launch("map", {"x": x}, y, activation_arguments(activation), _with(activation))


def binary_launch(
    op: BinaryOp, a: Strided, b: Strided, y: Strided, activation: Activation | None = None
) -> Launch:
    """y = activation(a op b): operands a, b, y."""
    template = {"op": f"BinaryOp::{op.name}", **_with(activation)}
    return _launch("binary", {"a": a, "b": b}, y, activation_arguments(activation), template)


def scale_shift_launch(
    x: Strided,
    scale: Strided,
    shift: Strided,
    y: Strided,
    activation: Activation | None = None,
) -> Launch:
    """y = activation(x · scale + shift): operands x, scale, shift, y."""
    read = {"x": x, "scale": scale, "shift": shift}
    return _launch("scale_shift", read, y, activation_arguments(activation), _with(activation))


def fill_launch(y: Strided, value: float) -> Launch:
    """y = value: operand y."""
    return _launch("fill", {}, y, (np.float32(value),), {})


def channel_shuffle_launch(x: Strided, y: Strided, axis: int, groups: int) -> Launch:
    """Channel g · (C/groups) + i of `axis` moves to i · groups + g: operands x, y.

    A copy: x as groups × C/groups is y as C/groups × groups transposed (ShuffleNet, section 3.1).
    """
    order = list(range(len(x.shape) + 1))
    order[axis : axis + 2] = [axis + 1, axis]
    per_group = x.shape[axis] // groups
    return map_launch(x.split(axis, groups), y.split(axis, per_group).transposed(order))


def _with(activation: Activation | None) -> dict[str, TemplateArgument]:
    return {"activation": activation_name(activation)}


def _launch(
    kernel: str,
    read: dict[str, Strided],
    y: Strided,
    scalars: tuple[Argument, ...],
    template: dict[str, TemplateArgument],
) -> Launch:
    steps = walk(y, *(each.broadcast(y.shape) for each in read.values()))
    return Launch(
        instantiate("elementwise.cu", kernel, **template, rank=steps.rank, v=steps.v),
        *blocks_of_threads(steps.steps),
        (*read, "y", steps.struct(), *scalars),
    )
