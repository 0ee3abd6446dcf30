"""Adds a batch axis to a model that uses axis 0 for other things than the batch.

    f(x) = f'(x')[0]    x' is x with a new first axis of size 1; f' is f with axes shifted by one

Such models store windows (Swin), patches (MobileViT), or queries, keys and values (ViT) along axis
0. At batch size 1, all elements of such a value belong to one image. A new first axis then makes
the value valid for any batch size. Operators that cannot have an additional axis, such as Conv, are
refused.
"""

from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np
import onnx_ir as ir

from models.graph import Shape
from models.onnx_loader.constants import add_constant
from models.onnx_loader.importer import ImpossibleError, OnnxNode, RefusedError, static_shape
from models.onnx_loader.integers import constant_of

Made = tuple[str, list[ir.Value | None], dict[str, ir.Attr]]
"""An operator, its inputs and its attributes."""


def separate_batch(model: ir.Model) -> bool:
    """Add a batch axis to each value of a normalised model that has none. Return whether the model
    changed.

    Raises RefusedError, whose message names the node, if an operator cannot have an additional
    axis.
    """
    if any(static_shape(value)[:1] != (1,) for value in model.graph.inputs):
        return False
    pass_ = _Pass(model.graph)
    for node in list(model.graph):
        if pass_.concerns(node):
            pass_.move(node)
    if any(static_shape(value)[:1] != (1,) for value in model.graph.outputs):
        raise RefusedError("an output has no axis for the batch")
    return bool(pass_.ahead)


class _Pass:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.ahead: dict[ir.Value, ir.Value] = {}  # values with an added first axis

    def concerns(self, node: ir.Node) -> bool:
        """Return whether axis 0 of an input or output of the node is not the batch."""
        computed = [value for value in node.inputs if value is not None and not _constant(value)]
        if not computed or node.domain != "":
            return False
        around = [static_shape(value)[:1] for value in (*computed, *node.outputs)]
        if any(first != (1,) for first in around):
            return True
        read = OnnxNode(node)
        if node.op_type == "Transpose":
            return read.integers("perm", [])[:1] not in ((), (0,))
        if node.op_type in ("Squeeze", "Unsqueeze") and read.has(1):
            rank = max(len(read.input_shape(0)), len(read.output_shape))
            return 0 in [axis % rank for axis in read.constant_integers(1)]
        return False

    def move(self, node: ir.Node) -> None:
        """Replace a node by a node whose inputs and outputs have an additional first axis."""
        name = node.name or str(node.outputs[0].name)
        if node.op_type not in _MOVED:
            raise RefusedError(f"{node.op_type} {name} cannot have an axis for the batch")
        try:
            operator, inputs, attributes = _MOVED[node.op_type](self, node)
        except RefusedError as error:
            raise RefusedError(f"{node.op_type} {name}: {error}") from error
        made = ir.node(operator, inputs, attributes, num_outputs=len(node.outputs), name=name)
        node.name = f"{name}/merged"
        self.graph.insert_before(node, made)
        after = node
        for output, new in zip(node.outputs, made.outputs, strict=True):
            shape = static_shape(output)
            new.shape, new.type = ir.Shape([1, *shape]), output.type
            original = str(output.name)
            output.name = f"{original}/merged"
            if shape[:1] != (1,):
                new.name = original
                self.ahead[output] = new
                continue
            new.name = f"{original}/ahead"
            back = self.reshaped(new, shape, original, after)
            ir.convenience.replace_all_uses_with(output, back, replace_graph_outputs=True)
            self.ahead[back] = new

    def reshaped(self, value: ir.Value, shape: Shape, name: str, before: ir.Node) -> ir.Value:
        """Insert a Reshape before a node, and return the reshaped value."""
        target = add_constant(self.graph, f"{name}/target", np.array(shape, np.int64))
        node = ir.node("Reshape", [value, target], name=f"{name}/reshaped")
        (made,) = node.outputs
        made.name, made.shape, made.type = name, ir.Shape(shape), value.type
        self.graph.insert_before(before, node)
        return made

    def lifted(self, node: ir.Node, index: int, rank: int = 0) -> ir.Value:
        """Return input `index` with an additional first axis.

        If the input has fewer than `rank` axes, axes of size 1 are inserted after the first axis. A
        constant with fewer than `rank` axes stays unchanged.
        """
        value = OnnxNode(node).input(index)
        shape = static_shape(value)
        missing = max(0, rank - len(shape))
        constant = constant_of(value)
        if constant is not None:
            if missing:
                return value
            return add_constant(self.graph, f"{value.name}/ahead", constant[np.newaxis])
        if missing:
            name = f"{node.name}/{value.name}/aligned"
            wide = (1, *(1,) * missing, *shape)
            return self.reshaped(self.ahead.get(value, value), wide, name, node)
        if value not in self.ahead:
            name = f"{value.name}/ahead"
            self.ahead[value] = self.reshaped(value, (1, *shape), name, node)
        return self.ahead[value]

    def inserted(
        self, before: ir.Node, operator: str, inputs: list[ir.Value], shape: Shape
    ) -> ir.Value:
        """Insert a new node before the node `before`, and return its output.

        `shape` is the shape of the output without the additional first axis.
        """
        name = f"{before.name}/{operator}"
        node = ir.node(operator, inputs, name=name)
        (made,) = node.outputs
        made.name, made.shape, made.type = name, ir.Shape([1, *shape]), inputs[0].type
        self.graph.insert_before(before, node)
        return made

    def constant(self, node: ir.Node, role: str, array: np.ndarray) -> ir.Value:
        """Add a constant that `node` will read, and return it."""
        return add_constant(self.graph, f"{node.name}/{role}", array)


def _constant(value: ir.Value) -> bool:
    return constant_of(value) is not None


def _axis(node: ir.Node, axis: int) -> int:
    """Return the index of `axis` after a first axis is added. Raises ImpossibleError if the axis
    does not exist."""
    read = static_shape(OnnxNode(node).input(0))
    if not -len(read) <= axis < len(read):
        raise ImpossibleError(f"axis {axis} does not exist; the input has {len(read)} axes")
    return axis % len(read) + 1


def _rest(node: ir.Node, first: int) -> list[ir.Value | None]:
    return list(islice(node.inputs, first, None))


def _alone(to: _Pass, node: ir.Node) -> Made:
    return node.op_type, [to.lifted(node, 0), *_rest(node, 1)], dict(node.attributes)


def _together(to: _Pass, node: ir.Node) -> Made:
    rank = len(static_shape(node.outputs[0]))
    inputs = [to.lifted(node, index, rank) for index in range(len(node.inputs))]
    return node.op_type, list(inputs), dict(node.attributes)


def _along(default: int) -> Callable[[_Pass, ir.Node], Made]:
    def move(to: _Pass, node: ir.Node) -> Made:
        axis = _axis(node, OnnxNode(node).integer("axis", default))
        attributes = {**node.attributes, "axis": ir.AttrInt64("axis", axis)}
        return node.op_type, [to.lifted(node, 0), *_rest(node, 1)], attributes

    return move


def _concat(to: _Pass, node: ir.Node) -> Made:
    axis = ir.AttrInt64("axis", _axis(node, OnnxNode(node).integer("axis", 0)))
    return "Concat", [to.lifted(node, index) for index in range(len(node.inputs))], {"axis": axis}


def _shape(to: _Pass, node: ir.Node) -> Made:
    target = np.array([1, *static_shape(node.outputs[0])], np.int64)
    made = "Expand" if node.op_type == "Expand" else "Reshape"
    return made, [to.lifted(node, 0), to.constant(node, "target", target)], {}


def _transpose(to: _Pass, node: ir.Node) -> Made:
    rank = len(static_shape(node.outputs[0]))
    perm = OnnxNode(node).integers("perm", list(reversed(range(rank))))
    if rank < 3:
        raise RefusedError("it transposes a matrix whose rows are images")
    moved = ir.AttrInt64s("perm", [0, *(axis + 1 for axis in perm)])
    return "Transpose", [to.lifted(node, 0)], {"perm": moved}


def _slice(to: _Pass, node: ir.Node) -> Made:
    read = OnnxNode(node)
    axes = read.constant_integers(3) if read.has(3) else range(len(read.constant_integers(1)))
    moved = np.array([_axis(node, axis) for axis in axes], np.int64)
    inputs = [*node.inputs[1:3], to.constant(node, "axes", moved), *_rest(node, 4)]
    return "Slice", [to.lifted(node, 0), *inputs], {}


def _reduce(to: _Pass, node: ir.Node) -> Made:
    read = OnnxNode(node)
    axes = read.constant_integers(1) if read.has(1) else range(len(read.input_shape(0)))
    moved = np.array([_axis(node, axis) for axis in axes], np.int64)
    inputs = [to.lifted(node, 0), to.constant(node, "axes", moved)]
    return node.op_type, list(inputs), dict(node.attributes)


def _gemm(to: _Pass, node: ir.Node) -> Made:
    """Return a MatMul that replaces a Gemm, with an Add if the Gemm has a bias."""
    read = OnnxNode(node)
    if read.integer("transA", 0):
        raise RefusedError("its first operand is transposed, which is not supported")
    weight = read.constant(1).astype(np.float64) * read.number("alpha", 1.0)
    matrix = weight.T if read.integer("transB", 0) else weight
    factors = [to.lifted(node, 0), to.constant(node, "matrix", np.asarray(matrix, np.float32))]
    if not read.has(2):
        return "MatMul", list(factors), {}
    bias = read.constant(2).astype(np.float64) * read.number("beta", 1.0)
    product = to.inserted(node, "MatMul", factors, static_shape(node.outputs[0]))
    return "Add", [product, to.constant(node, "bias", np.asarray(bias, np.float32))], {}


def _batch_normalisation(to: _Pass, node: ir.Node) -> Made:
    """Return a Mul and an Add that replace a BatchNormalization, because its channels are no longer
    at axis 1."""
    read = OnnxNode(node)
    gamma, beta, mean, variance = (read.constant(i).astype(np.float64) for i in (1, 2, 3, 4))
    scale = gamma / np.sqrt(variance + read.number("epsilon", 1e-5))
    after = (1,) * (len(read.input_shape(0)) - 2)
    by, plus = (
        to.constant(node, role, np.asarray(numbers.reshape(-1, *after), np.float32))
        for role, numbers in (("scale", scale), ("shift", beta - mean * scale))
    )
    product = to.inserted(node, "Mul", [to.lifted(node, 0), by], read.input_shape(0))
    return "Add", [product, plus], {}


_MOVED: Mapping[str, Callable[[_Pass, ir.Node], Made]] = {
    **dict.fromkeys(
        (
            "Abs", "Cast", "Clip", "Dropout", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish",
            "Identity", "LeakyRelu", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid",
            "Softplus", "Sqrt", "Swish", "Tanh",
        ),
        _alone,
    ),
    **dict.fromkeys(("Add", "Div", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Sum"), _together),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax"), _along(-1)),
    **dict.fromkeys(("Gather", "Split"), _along(0)),
    **dict.fromkeys(("Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze"), _shape),
    **dict.fromkeys(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    "BatchNormalization": _batch_normalisation,
    "Concat": _concat,
    "Gemm": _gemm,
    "Slice": _slice,
    "Transpose": _transpose,
}  # fmt: skip
"""For each operator, a function that returns it for values with an additional first axis."""
