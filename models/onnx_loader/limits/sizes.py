"""Checks the sizes of a graph's values, and counts the constant elements that its nodes read."""

from math import prod

import onnx_ir as ir
from onnxscript.optimizer import basic_constant_propagation

from models.errors import UnsupportedModelError
from models.onnx_loader.limits.bounds import (
    ELEMENT_LIMIT,
    FLAT_LIMIT,
    RANK_LIMIT,
    WINDOW_LIMIT,
    shown,
)

_INDICES = {ir.DataType.INT64, ir.DataType.INT32}
# Attributes of windows, each with its smallest allowed value.
_WINDOWS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": -WINDOW_LIMIT, "size": 0}


def known_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a value or constant, or None if any size is unknown."""
    if value is None:
        return None
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    sizes = value.shape
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return tuple(int(size) for size in sizes if isinstance(size, int))


def check_value(value: ir.Value) -> None:
    """Raise an error if a value has too many axes or too many elements per image.

    The limit on elements is lower for a value with a single axis.
    """
    if value.shape is None:
        return
    if len(value.shape) > RANK_LIMIT:
        raise too_many_axes(value, len(value.shape))
    sizes = [size if isinstance(size, int) else 1 for size in value.shape]
    if min(sizes, default=0) < 0:
        raise UnsupportedModelError(f"the value {value.name} has a negative size: {value.shape}")
    if len(sizes) == 1 and sizes[0] > FLAT_LIMIT:
        raise UnsupportedModelError(
            f"the value {value.name} has one axis with {shown(sizes[0])} entries;"
            f" at most {FLAT_LIMIT:,} are supported"
        )
    numbers = max(prod(sizes[1:]), *sizes[:1], 0)
    if numbers > ELEMENT_LIMIT:
        raise UnsupportedModelError(
            f"the value {value.name} has {shown(numbers)} numbers per image;"
            f" at most {ELEMENT_LIMIT:,} are supported"
        )


def check_attributes(model: ir.Model) -> None:
    """Raise an error if a window is too large, or if an attribute would crash onnx's shape
    inference."""
    for node in model.graph.all_nodes():
        parts = node.attributes.get("num_outputs")
        count = len(node.outputs) if parts is None or parts.is_ref() else parts.as_int()
        if count < len(node.outputs):  # a failed assertion in onnx would end the process
            raise UnsupportedModelError(
                f"{node.op_type} {node.name or node.outputs[0].name} has {len(node.outputs)}"
                f" outputs, but num_outputs={count}; both must be equal"
            )
        for name, least in _WINDOWS.items():
            attribute = node.attributes.get(name)
            if attribute is None or attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.INTS:
                numbers = tuple(attribute.as_ints())
            elif attribute.type == ir.AttributeType.INT:
                numbers = (attribute.as_int(),)
            else:
                continue
            for number in numbers:
                if not least <= number <= WINDOW_LIMIT:
                    raise UnsupportedModelError(
                        f"{node.op_type} {node.name or node.outputs[0].name} has {name} of"
                        f" {shown(number)}; {shown(least)} to {WINDOW_LIMIT:,} are supported"
                    )


def check_flat(model: ir.Model) -> None:
    """Raise an error if the nodes' one-dimensional integer outputs have too many elements in
    total."""
    entries = 0
    for node in model.graph.all_nodes():
        for value in node.outputs:
            shape = known_shape(value)
            if shape is not None and len(shape) == 1 and value.dtype in _INDICES:
                entries += shape[0]
    if entries > FLAT_LIMIT:
        raise UnsupportedModelError(
            f"the model computes {shown(entries)} sizes and indices;"
            f" at most {FLAT_LIMIT:,} are supported"
        )


def check_reads(model: ir.Model, room: int) -> None:
    """Raise an error if the model's nodes read more than `room` elements of constants in total.

    A constant counts once for each node that reads it, because folding and importing may copy it
    for each node.
    """
    basic_constant_propagation(model.graph.all_nodes())
    read = sum(
        _read(value)
        for node in model.graph.all_nodes()
        for value in node.inputs
        if value is not None
    )
    if read > room:
        raise UnsupportedModelError(
            f"its nodes read {shown(read)} constant numbers, counted once per node that reads them;"
            f" at most {room:,} are supported for a file of this size"
        )


def _read(value: ir.Value) -> int:
    """Return the number of elements if the value is a constant or a dequantized constant, otherwise
    0."""
    if value.const_value is not None:
        return value.const_value.size
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or not node.inputs:
        return 0
    integers = node.inputs[0]
    return 0 if integers is None or integers.const_value is None else integers.const_value.size


def too_many_axes(value: ir.Value, rank: int) -> UnsupportedModelError:
    """Return the error for a value that has `rank` axes, more than the limit."""
    return UnsupportedModelError(
        f"the value {value.name} has {shown(rank)} axes; at most {RANK_LIMIT} are supported"
    )
