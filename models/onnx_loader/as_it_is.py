"""Loads a model that Convoy's typed nodes cannot express, so that ONNX Runtime can run it.

The model keeps its nodes, its opset and its types. Only the input image and the scores are
converted to float32. The nodes may mix the images of a batch, so engines run the model with one
image at a time.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import onnx_ir as ir
from onnx import ModelProto, NodeProto, TensorProto, helper

from models.errors import UnsupportedModelError
from models.graph import Graph, Shape, Value
from models.onnx_loader.importer import OnnxNode, RefusedError, static_shape
from models.onnx_loader.limits.census import all_nodes
from models.onnx_loader.limits.sizes import known_shape
from models.onnx_loader.normalise import IR_VERSION, OPSET
from models.onnx_loader.opaque import Opaque
from models.onnx_loader.outputs import expose
from models.onnx_loader.subnormal import flush_proto

_NOR = "\nONNX Runtime cannot run the model"
_UNBOUNDED = {"Loop", "Scan"}
# ONNX Runtime divides a negative padding between both ends, and rounds towards 0.
_CUT = 2
_OTHER_FLOATS = (TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def as_it_is(
    name: str, proto: ModelProto, model: ir.Model, reason: str
) -> tuple[Graph, ModelProto]:
    """Return a graph with one Opaque node, and the ONNX model that this node runs.

    `model` is the normal form of `proto`. `reason` says why typed nodes cannot express the model.
    Raises UnsupportedModelError if the model has no batch axis, a fixed batch size above 1, an
    unknown shape, a loop or a node that ONNX Runtime computes wrong. The message begins with
    `reason`.
    """
    (image,), (scores,) = model.graph.inputs, model.graph.outputs
    try:
        before, after = static_shape(image), static_shape(scores)
    except RefusedError as error:
        raise UnsupportedModelError(f"{reason}{_NOR}: {_optimized(model) or error}") from error
    if not after or before[0] != after[0]:
        raise UnsupportedModelError(
            f"{reason}{_NOR}: its output {after} has no batch axis; export the model with the batch"
            " first"
        )
    if before[0] != 1:
        raise UnsupportedModelError(
            f"{reason}{_NOR}: its batch size is fixed at {before[0]}; export the model with the"
            " batch size 1 or a symbolic batch size"
        )
    if loops := {node.op_type for node in model.graph.all_nodes()} & _UNBOUNDED:
        raise UnsupportedModelError(
            f"{reason}{_NOR}: {', '.join(loops)} may run endlessly; export the model without it"
        )
    for each in model.graph.all_nodes():
        if flaw := _flaw(each):
            raise UnsupportedModelError(f"{reason}{_NOR}: in {each.op_type} {each.name}, it {flaw}")
    runnable = _runnable(proto, model, str(scores.name))
    shapes = _shapes(model)
    for each in all_nodes(runnable):
        if flaw := _flaw_of_window(each, shapes):
            named = each.name or each.output[0]
            raise UnsupportedModelError(f"{reason}{_NOR}: in {each.op_type} {named}, it {flaw}")
    _take_floats(runnable, str(image.name))
    _give_floats(runnable)
    node = Opaque(
        name=name,
        output=str(scores.name),
        x=str(image.name),
        reason=reason,
        sums=tuple(_terms(inner) for inner in model.graph),
        halves=any(w.data_type == TensorProto.FLOAT16 for w in runnable.graph.initializer),
    )
    values = {
        str(value.name): Value(str(value.name), shape[1:])
        for value, shape in ((image, before), (scores, after))
    }
    graph = Graph(name, (node.x,), (node.output,), values, (node,), {})
    return graph, runnable


def _optimized(model: ir.Model) -> str:
    """Return an error message if ONNX Runtime's own operators hide the shape of the scores, or ""
    if the model has no such operators."""
    nodes = [node for node in model.graph.all_nodes() if node.domain.startswith("com.microsoft")]
    if not nodes:
        return ""
    return (
        "the shape of its scores cannot be inferred, because ONNX does not define"
        f" {nodes[0].op_type} and other operators of ONNX Runtime. Give the file from which ONNX"
        " Runtime's optimizer or quantizer made this one"
    )


def _flaw(node: ir.Node) -> str:
    """Return what ONNX Runtime computes wrong in a node, or "" if nothing is known."""
    if node.domain:
        return ""
    read = OnnxNode(node)
    policy = read.text("keep_aspect_ratio_policy", "stretch")
    if node.op_type == "Resize" and policy != "stretch" and min(read.integers("axes", [0])) < 0:
        return (
            f"ignores keep_aspect_ratio_policy={policy}, because an axis is negative; export the"
            " model with axes from 0 on"
        )
    is_same = read.text("auto_pad", "NOTSET").startswith("SAME")
    if node.op_type.endswith("Pool") and is_same and set(read.integers("dilations", [1])) != {1}:
        return "pads too little, because auto_pad has dilations; export the model with pads instead"
    return ""


def _shapes(model: ir.Model) -> Mapping[str, Shape]:
    """Return the known shapes of the model's values by name."""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
    return {str(each.name): shape for each in values if (shape := known_shape(each)) is not None}


def _flaw_of_window(node: NodeProto, shapes: Mapping[str, Shape]) -> str:
    """Return what ONNX Runtime computes wrong in a node of the file, or "" if nothing is known.

    The normal form does not show this: there, `fold` has corrected the padding SAME, and integer
    operators are spelled out.
    """
    given: dict[str, Any] = {
        each.name: helper.get_attribute_value(each)
        for each in node.attribute
        if not each.ref_attr_name
    }
    is_ceiled = given.get("ceil_mode") and given.get("count_include_pad")
    if is_ceiled and node.op_type == "QLinearAveragePool":
        return (
            "counts positions beyond the padding, because it has ceil_mode and count_include_pad;"
            " export the model without ceil_mode"
        )
    is_same = given.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER")
    if not is_same or node.op_type == "ConvTranspose":
        return ""
    strides = given.get("strides", [])
    image, *others = (shapes.get(name, ()) for name in node.input or [""])
    filters = next((shape for shape in others if len(shape) == len(image)), ())
    kernel = given.get("kernel_shape") or filters[2:] or [1] * len(strides)
    sizes = image[1:-1] if node.op_type.startswith("Nhwc") else image[2:]
    for axis, (side, stride) in enumerate(zip(kernel, strides, strict=False)):
        # Where the size is unknown, the last window may end this far before the image's end.
        is_known = axis < len(sizes) and stride > 0
        rest = (sizes[axis] - 1) % stride + 1 if is_known else stride
        if rest - side >= _CUT:
            return (
                "cuts pixels off, because auto_pad has a window below its stride; export the model"
                " with pads instead"
            )
    return ""


def _runnable(proto: ModelProto, model: ir.Model, scores: str) -> ModelProto:
    """Return a copy of `proto` whose only output is `scores`.

    If ONNX Runtime does not support the opset of `proto`, return `model` as a ModelProto instead.
    """
    if any(
        opset.domain in ("", "ai.onnx") and opset.version > OPSET for opset in proto.opset_import
    ):
        return ir.serde.serialize_model(model)
    runnable = ModelProto()
    runnable.CopyFrom(proto)
    expose(runnable, scores)
    # From IR version 4 on, initializers are not inputs. A version above ONNX Runtime's does not
    # mean that the nodes are newer.
    runnable.ir_version = min(max(proto.ir_version, 4), IR_VERSION)
    flush_proto(runnable)
    return runnable


def _terms(node: ir.Node) -> int:
    """Estimate how many terms a node sums for one element of its output.

    For a Conv, this is the number of weights per output channel. For MatMul, Gemm, Softmax and
    LayerNormalization, it is the size of the last axis. For reductions and pooling, it is the
    number of elements read per element written.
    """
    shapes = [known_shape(value) or () for value in (*node.inputs[:2], node.outputs[0])]
    read, *filters, written = shapes
    if node.op_type == "Conv" and filters:
        return prod(filters[0][1:])
    return max(*read[-1:], prod(read) // max(1, prod(written)), 1)


def _take_floats(proto: ModelProto, image: str) -> None:
    """Make a float32 image the only input of `proto`. If the nodes read another type, add a
    Cast."""
    graph = proto.graph
    (taken,) = (value for value in graph.input if value.name == image)
    kept = type(taken)()
    kept.CopyFrom(taken)
    own = kept.type.tensor_type.elem_type
    if own != TensorProto.FLOAT:
        kept.type.tensor_type.elem_type = TensorProto.FLOAT
        kept.name = f"{image}/float32"
        graph.node.insert(0, helper.make_node("Cast", [kept.name], [image], to=own))
    del graph.input[:]
    graph.input.append(kept)


def _give_floats(proto: ModelProto) -> None:
    (scores,) = proto.graph.output
    if scores.type.tensor_type.elem_type not in _OTHER_FLOATS:
        return
    half, scores.name = scores.name, f"{scores.name}/float32"
    scores.type.tensor_type.elem_type = TensorProto.FLOAT
    proto.graph.node.append(helper.make_node("Cast", [half], [scores.name], to=TensorProto.FLOAT))
