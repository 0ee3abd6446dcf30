"""Launches kernels/src/elementwise.cu: copies, activations, binary operations, scale and shift.

Tensors may have any strides. Their axes may have any order, but the same order for all tensors of a
launch. Inputs are broadcast to the shape of the output. The output may overwrite an input that has
the same strides. Each function raises ValueError if shapes do not match, or if an index exceeds 32
bits.
"""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, Value, blocks_of_threads, instantiate, launch
from kernels.layout.strided import StridedTensor, walk
from kernels.problems.activation import Activation
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import FLOAT, one_type


def activation_name(activation: Activation | None) -> str:
    """Return the name of the activation's enumerator in common.cuh."""
    return f"Activation::{activation.kind.name if activation else 'NONE'}"


def activation_arguments(activation: Activation | None) -> dict[str, Value]:
    """Return the activation's parameters as the arguments `a` and `b` of a kernel."""
    if activation is None:
        return {"a": 0.0, "b": 0.0}
    return {"a": activation.a, "b": activation.b}


def map_launch(x: StridedTensor, y: StridedTensor, activation: Activation | None = None) -> Launch:
    """Return a launch of y = activation(x), with the operands x and y. Without an activation, the
    launch copies x."""
    template = {"x": x.stored.element, "y": y.stored.element, **_with(activation)}
    return _launch("map", {"x": x}, y, template, activation_arguments(activation))


def binary_launch(
    op: BinaryOp,
    a: StridedTensor,
    b: StridedTensor,
    y: StridedTensor,
    activation: Activation | None = None,
) -> Launch:
    """Return a launch of y = activation(a op b) with the operands a, b and y."""
    template = {**_alike(a, b, y), "op": f"BinaryOp::{op.name}", **_with(activation)}
    read = {"left": a, "right": b}
    return _launch("binary", read, y, template, activation_arguments(activation)).renamed(
        {"left": "a", "right": "b"}
    )


def scale_shift_launch(
    x: StridedTensor,
    scale: StridedTensor,
    shift: StridedTensor,
    y: StridedTensor,
    activation: Activation | None = None,
) -> Launch:
    """Return a launch of y = activation(x · scale + shift) with the operands x, scale, shift and y.

    scale and shift are floats.
    """
    one_type(FLOAT, scale.stored, shift.stored)
    read = {"x": x, "scale": scale, "shift": shift}
    template = {**_alike(x, y), **_with(activation)}
    return _launch("scale_shift", read, y, template, activation_arguments(activation))


def fill_launch(y: StridedTensor, value: float) -> Launch:
    """Return a launch of y = value with the operand y."""
    return _launch("fill", {}, y, _alike(y), {"value": value})


def channel_shuffle_launch(x: StridedTensor, y: StridedTensor, axis: int, groups: int) -> Launch:
    """Return a launch that moves channel g · (C/groups) + i to channel i · groups + g, with the
    operands x and y.

    The launch transposes the channels, read as a matrix groups × C/groups (ShuffleNet, section
    3.1).
    """
    order = list(range(len(x.shape) + 1))
    order[axis : axis + 2] = [axis + 1, axis]
    per_group = x.shape[axis] // groups
    return map_launch(x.split(axis, groups), y.split(axis, per_group).transposed(order))


def _alike(*tensors: StridedTensor) -> dict[str, TemplateArgument]:
    """Return the C++ type of the numbers, which must be the same in all tensors. Raises ValueError
    if types differ."""
    return {"t": one_type(*(tensor.stored for tensor in tensors)).element}


def _with(activation: Activation | None) -> dict[str, TemplateArgument]:
    return {"activation": activation_name(activation)}


def _launch(
    kernel: str,
    read: dict[str, StridedTensor],
    y: StridedTensor,
    template: dict[str, TemplateArgument],
    scalars: dict[str, Value],
) -> Launch:
    steps = walk(y, *(tensor.broadcast(y.shape) for tensor in read.values()))
    return launch(
        instantiate("elementwise.cu", kernel, **template, rank=steps.rank, v=steps.v),
        *blocks_of_threads(steps.steps),
        **{name: name for name in (*read, "y")},
        walk=steps.struct(),
        **scalars,
    )
