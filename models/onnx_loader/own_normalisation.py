"""Finds the range of pixels that a network expects, by means of the network's first operations.

A network that multiplies its input by 1 / 255 or subtracts means of about 120 expects pixels from 0
to 255, like Keras models with a Rescaling layer. A network that subtracts 0.485 and divides by
0.229 expects pixels from 0 to 1. A BatchNormalization or a depthwise 1×1 convolution may do the
same. If the means are ImageNet's, they also show the order of the channels, even if an earlier
operation reverses the channels. If the first operations do not show the range, it is unknown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Floats = NDArray[np.float64]

# Operators that may change the type or the count of pixels, but neither their range nor channels.
_MOVES = frozenset({"Cast", "Identity", "Resize", "Upsample"})

_ARITHMETIC: Mapping[str, Callable[..., Floats]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}

# A constant of a normalisation has one number, or one number per channel.
_MOST_NUMBERS = 4

# The mean of a channel of natural images, divided by the largest value, is between these numbers.
_LEAST_MEAN, _MOST_MEAN = 0.25, 0.75
_MEAN_OF_RGB, _NEAR = np.array((0.485, 0.456, 0.406)), 0.01  # the mean of ImageNet's photographs


@dataclass(frozen=True, slots=True)
class OwnNormalisation:
    """The range and the channel order of the pixels that a network expects."""

    most: float  # the largest value of a pixel, 255 or 1
    order: str = ""  # "rgb" or "bgr"; "" if the operations do not show it


def own_normalisation(proto: ModelProto, name: str) -> OwnNormalisation | None:
    """Return the range of pixels that a network expects at its input `name`, or None if it is
    unknown.

    It is unknown if the first operations do not normalise. For example, a network that begins with
    an ordinary convolution may have been trained on any range.
    """
    line = _line(proto.graph, name)
    if line is None or (line.scale <= 0).any():
        return None
    if (line.shift < 0).all():
        zero = -line.shift / line.scale  # the pixel that becomes 0: near the images' mean
        for most in (255.0, 1.0):
            if ((zero >= _LEAST_MEAN * most) & (zero <= _MOST_MEAN * most)).all():
                return OwnNormalisation(most, _order(zero / most, line))
        return None
    # Without a mean, only a division by about 255 or 127.5 shows the range.
    factor = 1 / line.scale
    return OwnNormalisation(255.0) if (factor >= 100).all() and (factor <= 300).all() else None


@dataclass(frozen=True, slots=True)
class _Line:
    """A network's first operations as pixel · scale + shift, with one scale and shift per channel.

    The channels are in the order that they have after these operations.
    """

    scale: Floats
    shift: Floats
    axes: int
    channels: int | None  # the axis of the channels, if only one axis has three entries
    is_reversed: bool = False  # whether the channels are reversed, compared with the input

    def then(self, scale: Floats, shift: Floats) -> "_Line":
        """Return the scale and shift of these operations, followed by another scale and shift."""
        return replace(self, scale=self.scale * scale, shift=self.shift * scale + shift)

    def reversed(self) -> "_Line":
        """Return the same scale and shift for channels in reverse order."""
        scale, shift = self.scale[::-1], self.shift[::-1]
        return replace(self, scale=scale, shift=shift, is_reversed=not self.is_reversed)


def _order(mean: Floats, line: _Line) -> str:
    """If `mean` is ImageNet's, return the order of the input's channels, "rgb" or "bgr". Otherwise,
    return "".

    `mean` is in the order of the channels after the operations in `line`.
    """
    names = ("bgr", "rgb") if line.is_reversed else ("rgb", "bgr")
    for name, one in zip(names, (_MEAN_OF_RGB, _MEAN_OF_RGB[::-1]), strict=True):
        if mean.size == one.size and (np.abs(mean - one) < _NEAR).all():
            return name
    return ""


def _line(graph: GraphProto, name: str) -> _Line | None:
    """Return the scale and shift that the first operations apply to pixels, or None if they apply
    none."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    (image,) = (value for value in graph.input if value.name == name)
    sizes = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    axis = sizes.index(3, 1) if sizes[1:].count(3) == 1 else None
    line = _Line(np.ones(1), np.zeros(1), len(sizes), axis)
    computed = False
    while node := _only_reader(graph, name):
        if node.domain:
            break
        if (moved := _moved(node, line, constants)) is not None:
            line = moved
        elif (own := _own_line(node, name, constants)) is not None:
            if len({part.size for part in (line.scale, line.shift, *own)} - {1}) > 1:
                break  # the numbers vary along two axes
            line, computed = line.then(*own), True
        else:
            break
        name = node.output[0]
    return line if computed and np.isfinite(line.scale).all() else None


_Constants = Mapping[str, TensorProto]


def _numbers(node: NodeProto, at: Iterable[int], constants: _Constants) -> list[Floats] | None:
    """Return the inputs with the indices `at` as arrays.

    Return None if one of them is computed, or has more than four numbers.
    """
    names = [node.input[index] for index in at]
    found = [constants.get(name) for name in names]
    if any(tensor is None or not 0 < np.prod(tensor.dims) <= _MOST_NUMBERS for tensor in found):
        return None
    return [numpy_helper.to_array(t).astype(np.float64).ravel() for t in found if t is not None]


def _moved(node: NodeProto, line: _Line, constants: _Constants) -> _Line | None:
    """If a node only moves pixels, return `line` with the order of the channels after the node.
    Return None for other nodes."""
    if node.op_type in _MOVES:
        return line
    given = {part.name: helper.get_attribute_value(part) for part in node.attribute}
    if node.op_type == "Transpose" and "perm" in given:
        axes = list(given["perm"])
        return replace(line, channels=axes.index(line.channels) if line.channels in axes else None)
    if line.channels is None:
        return None
    numbers = _numbers(node, range(1, len(node.input)), constants)
    if numbers is None:
        return None
    if node.op_type == "Gather" and given.get("axis", 0) % line.axes == line.channels:
        return line.reversed() if numbers[0].tolist() == [2, 1, 0] else None
    if node.op_type == "Slice" and len(numbers) == 4:
        starts, ends, axes, steps = (part.tolist() for part in numbers)
        whole = starts[:1] not in ([0], [1], [-2], [-3]) and ends[0] < -len(_MEAN_OF_RGB)
        if [axis % line.axes for axis in axes] == [line.channels] and steps == [-1] and whole:
            return line.reversed()
    return None


def _own_line(node: NodeProto, name: str, constants: _Constants) -> tuple[Floats, Floats] | None:
    """Return the scale and shift if a node applies them to each channel, otherwise None."""
    if node.op_type in _ARITHMETIC:
        return _of_arithmetic(node, name, constants)
    if node.op_type == "BatchNormalization":
        numbers = _numbers(node, range(1, 5), constants)
        if numbers is None:
            return None
        gamma, beta, mean, variance = numbers
        epsilon = next((part.f for part in node.attribute if part.name == "epsilon"), 1e-5)
        factor = gamma / np.sqrt(np.maximum(variance, 0) + epsilon)
        return factor, beta - mean * factor
    if node.op_type == "Conv":
        filters, parts = constants.get(node.input[1]), {p.name: set(p.ints) for p in node.attribute}
        if filters is None or set(filters.dims[1:]) != {1}:
            return None
        if parts.get("pads", {0}) != {0} or parts.get("strides", {1}) != {1}:
            return None
        numbers = _numbers(node, range(1, len(node.input)), constants)
        return None if numbers is None else (numbers[0], numbers[1] if numbers[1:] else np.zeros(1))
    return None


def _of_arithmetic(
    node: NodeProto, name: str, constants: _Constants
) -> tuple[Floats, Floats] | None:
    other = [index for index, each in enumerate(node.input) if each != name]
    if len(other) != 1 or (node.op_type in ("Sub", "Div") and other == [0]):
        return None  # for example, a constant minus the pixels or divided by them
    numbers = _numbers(node, other, constants)
    if numbers is None:
        return None
    apply = _ARITHMETIC[node.op_type]
    if node.op_type in ("Mul", "Div"):
        return apply(np.ones(1), numbers[0]), np.zeros(1)
    return np.ones(1), apply(np.zeros(1), numbers[0])


def _only_reader(graph: GraphProto, name: str) -> NodeProto | None:
    """Return the node that reads a value, or None if no node or more than one node reads it. A
    Shape does not count."""
    readers = [node for node in graph.node if name in node.input and node.op_type != "Shape"]
    return readers[0] if len(readers) == 1 else None
