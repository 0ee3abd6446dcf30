"""Makes a model that was exported for one batch size b valid for every batch size.

Axis 0 of every computed tensor is the batch. Two kinds of constants depend on b: the target shapes
of Reshape, Expand and Resize, and operands with b entries along axis 0. A new target shape takes
the batch size from the node's input. An operand is reduced to the values for one image, which apply
to every image. Typed nodes have no batch axis and need no change.
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from models.errors import UnsupportedModelError
from models.graph import Shape
from models.onnx_loader.constants import add_constant
from models.onnx_loader.importer import drop_batch_axis, static_shape
from models.onnx_loader.integers import constant_of, input_of

BATCH = "N"
_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "PRelu"}


def make_batch_symbolic(model: ir.Model) -> None:
    """Edit `model`, which has static shapes, so that it is valid for every batch size."""
    for node in list(model.graph):
        if node.op_type == "Reshape":
            _copy_batch(model.graph, node)
        elif node.op_type == "Expand":
            _expand_without_batch(model.graph, node)
        elif node.op_type == "Resize":
            _resize_without_batch(model.graph, node)
        elif node.op_type == "Concat":
            _repeat_constants(model.graph, node)
        elif node.op_type in _ELEMENTWISE:
            _cut_constants(model.graph, node, range(len(node.inputs)))
        elif node.op_type == "Gemm":
            _cut_constants(model.graph, node, range(2, len(node.inputs)))  # the bias
    shapes = {value: static_shape(value)[1:] for value in model.graph.outputs}
    for node in model.graph:
        for output in node.outputs:
            output.shape = None
    for value in model.graph.inputs:
        value.shape = ir.Shape([BATCH, *static_shape(value)[1:]])
    passes.ShapeInferencePass()(model)
    passes.RemoveUnusedNodesPass()(model)
    for value, rest in shapes.items():
        # Typed nodes never change the batch axis, so it is known even if shape inference loses it
        # (Pad, Slice). A number would mean that the model still has a fixed batch size.
        if value.shape is not None and isinstance(value.shape[0], int):
            raise UnsupportedModelError(
                f"output {value.name} has the shape {value.shape}; its first axis must be the batch"
            )
        value.shape = ir.Shape([BATCH, *rest])


def _image_shape(node: ir.Node) -> Shape:
    return static_shape(node.outputs[0])[1:]


def _copy_batch(graph: ir.Graph, node: ir.Node) -> None:
    # A 0 in a Reshape target copies that axis from the input (unless allowzero).
    target = np.array([0, *_image_shape(node)], np.int64)
    node.attributes.pop("allowzero", None)
    node.replace_input_with(1, add_constant(graph, f"{node.outputs[0].name}/target", target))


def _expand_without_batch(graph: ir.Graph, node: ir.Node) -> None:
    # Expand broadcasts in both directions: a target of 1 keeps the input's size.
    target = np.array([1, *_image_shape(node)], np.int64)
    node.replace_input_with(1, add_constant(graph, f"{node.outputs[0].name}/target", target))


def _resize_without_batch(graph: ir.Graph, node: ir.Node) -> None:
    """Restrict a Resize with given sizes to the spatial axes, so that its sizes do not include the
    batch size."""
    sizes = input_of(node, 3)
    if sizes is None:
        return
    axes = range(2, len(static_shape(node.outputs[0])))
    node.attributes["axes"] = ir.AttrInt64s("axes", list(axes))
    target = np.array(static_shape(node.outputs[0])[2:], np.int64)
    node.replace_input_with(3, add_constant(graph, f"{node.outputs[0].name}/target", target))


def _cut_constants(graph: ir.Graph, node: ir.Node, operands: Iterable[int]) -> None:
    rank = len(node.outputs[0].shape or ())
    for index in operands:
        value = node.inputs[index]
        array = None if value is None else constant_of(value)
        if value is None or array is None:
            continue
        if array.ndim == rank and array.shape[0] != 1:
            image = drop_batch_axis(str(value.name), array, rank)[np.newaxis]
            name = f"{node.outputs[0].name}/constant{index}"
            node.replace_input_with(index, add_constant(graph, name, image))


def _repeat_constants(graph: ir.Graph, node: ir.Node) -> None:
    computed = [value for value in node.inputs if value is not None and value.const_value is None]
    for index, value in enumerate(node.inputs):
        if value is None or value.const_value is None:
            continue
        name = f"{node.outputs[0].name}/part{index}"
        image = drop_batch_axis(
            str(value.name), value.const_value.numpy(), len(node.outputs[0].shape or ())
        )
        batch = ir.node("Shape", [computed[0]], {"start": 0, "end": 1})
        rest = add_constant(graph, f"{name}/rest", np.array(image.shape, np.int64))
        target = ir.node("Concat", [batch.outputs[0], rest], {"axis": 0})
        part = add_constant(graph, name, image[np.newaxis])
        repeated = ir.node("Expand", [part, target.outputs[0]])
        for new, suffix in ((batch, "n"), (target, "shape"), (repeated, "repeated")):
            new.outputs[0].name = f"{name}/{suffix}"
            graph.insert_before(node, new)
        node.replace_input_with(index, repeated.outputs[0])
