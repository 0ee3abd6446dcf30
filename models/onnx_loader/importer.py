"""Holds the state of a conversion from ONNX nodes to Convoy's typed nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from models.errors import UnsupportedModelError
from models.graph import Graph, Grid, Node, Shape, Value, Weight
from models.onnx_loader.constants import numbered
from models.onnx_loader.integers import constant_of, dequantized_constant


class RefusedError(Exception):
    """Raised if an ONNX node cannot be converted to typed nodes.

    The loader lists all such errors of a model in one message.
    """


class ImpossibleError(RefusedError):
    """Raised if an ONNX node is invalid, so that ONNX Runtime could not run it either."""


class UnknownShapeError(RefusedError):
    """Raised if the shape of a value is unknown, usually because an earlier node is unsupported."""


@dataclass
class Importer:
    """Collects Convoy's nodes, values and weights while ONNX nodes are converted one by one."""

    reserved: frozenset[str] = frozenset()  # names of computed values that are declared later
    values: dict[str, Value] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    grids: dict[str, Grid] = field(default_factory=dict)

    def declare(self, value: ir.Value) -> str:
        """Record the shape of a computed value without its batch axis, and return its name."""
        name = str(value.name)
        shape = static_shape(value)
        if not shape:
            raise RefusedError(f"the value {name} has no axes; its axis 0 must be the batch")
        self.values[name] = Value(name, shape[1:])
        return name

    def temporary(self, name: str, shape: Shape) -> str:
        """Add a value for an intermediate result, and return its name.

        Such a value is needed if one ONNX node becomes several typed nodes.
        """
        name = next(n for n in numbered(name) if not self._taken(n) and n not in self.weights)
        self.values[name] = Value(name, shape)
        return name

    def shape(self, name: str) -> Shape:
        """Return the shape of a value (of one image) or of a weight."""
        return self.values[name].shape if name in self.values else self.weights[name].shape

    def weight(self, name: str, array: NDArray[np.generic], grid: Grid | None = None) -> str:
        """Store a weight as contiguous float32, and return its name.

        If a different weight has this name, a number is appended. If the file stores the weight
        quantized, `grid` has its integers and scales.
        """
        # np.ascontiguousarray would add an axis to a scalar.
        weight = np.asarray(array, np.float32, order="C")
        # Several nodes may read the same weight, each in another shape.
        name = next(
            free
            for free in numbered(name)
            if not self._taken(free) and _same(self.weights.get(free, weight), weight)
        )
        self.weights[name] = weight
        if grid is not None:
            self.grids[name] = grid
        return name

    def keep_storage(self, first: int) -> None:
        """Copy the quantization (type, scale and zero point) of each node's input to its output.

        This applies to all nodes from index `first` on, which must only move elements. Raises
        RefusedError if the inputs of a node are quantized differently.
        """
        for node in self.nodes[first:]:
            read = {self.values[name].stored for name in node.operands() if name in self.values}
            if len(read) != 1 or any(name in self.weights for name in node.operands()):
                raise RefusedError(
                    "it joins integers that have different scales or zero points, which is not"
                    " supported"
                )
            self.values[node.output] = replace(self.values[node.output], stored=read.pop())

    def operand(self, value: ir.Value, rank: int) -> str:
        """Return the name of an operand. If it is a constant, store it as a weight first.

        `rank` is the operation's number of axes, including the batch axis.
        """
        name = str(value.name)
        constant = constant_of(value)
        if constant is None:
            return name
        array = drop_batch_axis(name, constant, rank)
        return self.weight(name if array.ndim < rank - 1 else f"{name}/image", array)

    def _taken(self, name: str) -> bool:
        return name in self.reserved or name in self.values

    def graph(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """Return the graph of all nodes, values and weights collected so far."""
        nodes = tuple(self.nodes)
        return Graph(name, inputs, outputs, self.values, nodes, self.weights, self.grids)


def _same(a: Weight, b: Weight) -> bool:
    return a is b or (a.shape == b.shape and np.array_equal(a, b))


@dataclass(frozen=True)
class OnnxNode:
    """Reads the inputs, outputs and attributes of an ONNX node."""

    node: ir.Node

    @property
    def name(self) -> str:
        """Return the node's unique name. A node without a name has the name of its first output."""
        return self.node.name or str(self.node.outputs[0].name)

    @property
    def output(self) -> ir.Value:
        """Return the node's first output."""
        return self.node.outputs[0]

    @property
    def output_shape(self) -> Shape:
        """Return the shape of the first output, including the batch axis."""
        return static_shape(self.output)

    def has(self, index: int) -> bool:
        """Return whether input `index` is present."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def input(self, index: int) -> ir.Value:
        """Return input `index`. Raises RefusedError if it is missing."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise RefusedError(f"input {index} is missing, but is required")
        return value

    def input_shape(self, index: int) -> Shape:
        """Return the shape of input `index`, including the batch axis."""
        return static_shape(self.input(index))

    def x(self, index: int = 0) -> str:
        """Return the name of input `index`, which must be computed. Raises RefusedError if it is a
        constant."""
        value = self.input(index)
        if constant_of(value) is not None:
            raise RefusedError(f"input {index} is a constant, but must be a computed tensor")
        return str(value.name)

    def constant(self, index: int) -> NDArray[np.generic]:
        """Return the constant at input `index`. Raises RefusedError if the input is computed."""
        value = self.input(index)
        array = constant_of(value)
        if array is None:
            raise RefusedError(f"input {index} ({value.name}) must be constant, but is computed")
        return array

    def grid(self, index: int, *, transposed: bool = False) -> Grid | None:
        """Return the quantized constant at input `index` as integers and scales.

        Return None if the constant is not quantized, or if its scales are neither per tensor nor
        per row. If `transposed` is True, transpose the constant first.
        """
        kept = dequantized_constant(self.input(index))
        if kept is None:
            return None
        numbers = kept.numbers.T if transposed else kept.numbers
        axis = numbers.ndim - 1 - kept.axis if transposed else kept.axis
        if kept.scale.size > 1 and axis != 0:
            return None
        return Grid(np.ascontiguousarray(numbers, np.int32), kept.scale)

    def constant_integers(self, index: int) -> list[int]:
        """Return the constant at input `index` as a list of integers."""
        return [int(entry) for entry in np.atleast_1d(self.constant(index))]

    def scalar(self, index: int, default: float) -> float:
        """Return the constant at input `index` as one number, or `default` if the input is
        missing."""
        return float(self.constant(index).item()) if self.has(index) else default

    def gives(self, index: int) -> bool:
        """Return whether another node reads output `index`, or whether it is an output of the
        model."""
        outputs = self.node.outputs
        return index < len(outputs) and bool(
            outputs[index].uses() or outputs[index].is_graph_output()
        )

    def integer(self, name: str, default: int) -> int:
        """Return the integer attribute `name`, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def number(self, name: str, default: float) -> float:
        """Return the floating-point attribute `name`, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_float()

    def text(self, name: str, default: str) -> str:
        """Return the string attribute `name`, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def integers(self, name: str, default: list[int]) -> tuple[int, ...]:
        """Return the attribute `name`, a list of integers, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return tuple(default if attribute is None else attribute.as_ints())

    def axis(self, axis: int, rank: int) -> int:
        """Convert the index of an axis in a batch to its index in one image.

        `rank` is the number of axes of the batch. Raises RefusedError if `axis` is the batch axis.
        """
        axis = axis + rank if axis < 0 else axis
        if axis == 0:
            raise RefusedError("it works along axis 0, the batch; only other axes are supported")
        return axis - 1


def extends(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether a constant of this shape can be broadcast to the shape `to`."""
    last = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape, last, strict=True))


def drop_batch_axis(name: str, array: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
    """Return the part of a constant that belongs to one image.

    `rank` is the operation's number of axes, including the batch axis. A constant with fewer axes
    has no batch axis and is returned unchanged. Raises UnsupportedModelError if the images of the
    batch have different values.
    """
    if array.ndim == 0 or array.ndim < rank:
        return array
    if array.shape[0] != 1 and (array != array[:1]).any():
        raise UnsupportedModelError(
            f"constant {name} differs between the {array.shape[0]} images of a batch; export the"
            " model with the batch size 1"
        )
    image: NDArray[np.generic] = array[0]
    return image


def static_shape(value: ir.Value) -> Shape:
    """Return a value's shape. Raises UnknownShapeError if any size is unknown."""
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    shape = value.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise UnknownShapeError(
            f"the shape of {value.name} cannot be inferred: {shape}; export the model with fixed"
            " shapes"
        )
    return tuple(int(size) for size in shape if isinstance(size, int))


def attributes_only(node: OnnxNode, allowed: Mapping[str, object]) -> None:
    """Raise RefusedError if an attribute of a node differs from its value in `allowed`."""
    for name, value in allowed.items():
        attribute = node.node.attributes.get(name)
        if attribute is not None and attribute.value != value:
            raise RefusedError(
                f"{name}={attribute.value} is not supported; only {name}={value} is supported"
            )
