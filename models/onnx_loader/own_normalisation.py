"""Finds out from a network's first operations in which range it expects pixels.

A network that multiplies its input by 1 / 255, or subtracts means of about 120, normalises pixels
of 0 to 255 itself, as Keras' Rescaling does; one that subtracts 0.485 and divides by 0.229 takes
pixels of 0 to 1. What the first operations leave open is not guessed here.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

# What moves or retypes pixels, and changes no number.
_MOVES = frozenset({"Cast", "Identity", "Transpose"})

_ARITHMETIC: Mapping[str, Callable[..., NDArray[np.float64]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}

# Constants of a normalisation have a number per channel, or one.
_MOST_NUMBERS = 4

# The mean of natural images' channels, in parts of the largest value, is within these.
_LEAST_MEAN, _MOST_MEAN = 0.25, 0.75


def takes_pixels_up_to(proto: ModelProto, name: str) -> float | None:
    """Return the largest value of the pixels that input `name` takes, 255 or 1.

    None if the first operations on it do not tell: a network whose first operation is a
    convolution may have been trained on either.
    """
    line = _line(proto.graph, name)
    if line is None:
        return None
    scale, shift = line
    if (scale <= 0).any():
        return None
    if (shift < 0).all():
        zero = -shift / scale  # the pixel that becomes 0, near the mean of the images
        for most in (255.0, 1.0):
            if ((zero >= _LEAST_MEAN * most) & (zero <= _MOST_MEAN * most)).all():
                return most
        return None
    # Without a mean only a division by about the largest byte, or half of it, tells.
    return 255.0 if (1 / scale >= 100).all() and (1 / scale <= 300).all() else None


def _line(graph: GraphProto, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the scale and the shift by which the first operations change pixels; None if they
    change none."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    scale, shift, computed = np.ones(1), np.zeros(1), False
    while node := _only_reader(graph, name):
        if node.op_type in _ARITHMETIC and not node.domain:
            other = [each for each in node.input if each != name]
            found = constants.get(other[0]) if len(other) == 1 else None
            if found is None or np.prod(found.dims) > _MOST_NUMBERS:
                break
            if node.op_type in ("Sub", "Div") and node.input[0] != name:
                break  # a constant minus the pixels, or over them
            number = numpy_helper.to_array(found).astype(np.float64).ravel()
            apply = _ARITHMETIC[node.op_type]
            if node.op_type in ("Mul", "Div"):
                scale = apply(scale, number)
            shift = apply(shift, number)
            computed = True
        elif node.op_type not in _MOVES:
            break
        name = node.output[0]
    return (scale, shift) if computed and np.isfinite(scale).all() else None


def _only_reader(graph: GraphProto, name: str) -> NodeProto | None:
    """Return the node that reads a value, if only one does."""
    readers = [node for node in graph.node if name in node.input]
    return readers[0] if len(readers) == 1 else None
