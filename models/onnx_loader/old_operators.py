"""Replaces old operators that onnx's opset conversion removes or misinterprets.

ONNX Runtime still runs these operators. Most of them were experimental, and the converters of Core
ML and Windows ML wrote them. The replacements are operators of the file's own opset, because the
opset is converted later.

    old operator                               replacement
    ImageScaler, Affine, Scale                 a x + b
    ScaledTanh, ParametricSoftplus             a f(b x)
    ThresholdedRelu before opset 10            x (x > alpha)
    Crop, DynamicSlice of constants            Slice
    MeanVarianceNormalization before opset 9   (x - mean) / deviation
    BatchNormalization with spatial = 0        one scale and shift per element
    GroupNormalization of opsets 18 to 20      InstanceNormalization, one channel per group

A Pad that repeats elements loses its `value`, which it does not use and which newer opsets lack.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from models.errors import UnsupportedModelError
from models.onnx_loader.limits.sizes import known_shape

# The first opset in which Slice has inputs instead of attributes.
_SLICE_OF_INPUTS = 10
# ONNX Runtime's epsilon, which prevents a division by 0.
_MVN_EPSILON = 1e-9


class _Writer:
    """Creates the nodes that replace one old node."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node, self.opset = node, opset
        self.nodes: list[ir.Node] = []

    def add(self, op: str, *inputs: "ir.Value | None", **attributes: Any) -> ir.Value:
        """Add a node, and return its only output."""
        node = ir.node(op, list(inputs), attributes)
        self.nodes.append(node)
        node.outputs[0].name = f"{self.node.outputs[0].name}/{len(self.nodes)}"
        return node.outputs[0]

    def constant(self, numbers: object, kind: type[np.generic] = np.float32) -> ir.Value:
        """Add a constant with these numbers, and return it."""
        return self.add("Constant", value=ir.tensor(np.asarray(numbers, kind)))

    def x(self, index: int = 0) -> ir.Value:
        """Return input `index`. Raises UnsupportedModelError if it is missing."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise self.refused(f"has no input {index}, which is required")
        return value

    def known(self, index: int) -> list[int]:
        """Return the integers of input `index`, which must be constant. Raises
        UnsupportedModelError if it is computed."""
        constant = ir.convenience.get_const_tensor(self.x(index))
        if constant is None:
            raise self.refused(f"has the computed input {index}, which must be constant")
        return [int(entry) for entry in constant.numpy().reshape(-1)]

    def number(self, name: str, default: float) -> float:
        """Return the floating-point attribute `name`, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_float()

    def integer(self, name: str, default: int) -> int:
        """Return the integer attribute `name`, or `default` if it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def cut(self, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> ir.Value:
        """Add a Slice of the input, and return its output."""
        if self.opset < _SLICE_OF_INPUTS:
            return self.add("Slice", self.x(), starts=starts, ends=ends, axes=axes)
        given = (self.constant(numbers, np.int64) for numbers in (starts, ends, axes))
        return self.add("Slice", self.x(), *given)

    def refused(self, why: str) -> UnsupportedModelError:
        """Return an UnsupportedModelError whose message names the node."""
        name = self.node.name or self.node.outputs[0].name
        return UnsupportedModelError(f"{self.node.op_type} {name} {why}")


def _image_scaler(to: _Writer) -> ir.Value:
    bias = to.node.attributes.get("bias")
    if bias is None:
        raise to.refused("has no bias, which is required")
    scaled = to.add("Mul", to.x(), to.constant(to.number("scale", 1.0)))
    return to.add("Add", scaled, to.constant(np.reshape(bias.as_floats(), (-1, 1, 1))))


def _affine(to: _Writer) -> ir.Value:
    scaled = to.add("Mul", to.x(), to.constant(to.number("alpha", 1.0)))
    return to.add("Add", scaled, to.constant(to.number("beta", 0.0)))


def _scale(to: _Writer) -> ir.Value:
    return to.add("Mul", to.x(), to.constant(to.number("scale", 1.0)))


def _of_function(function: str) -> "Callable[[_Writer], ir.Value]":
    def write(to: _Writer) -> ir.Value:
        inside = to.add("Mul", to.x(), to.constant(to.number("beta", 1.0)))
        result = to.add(function, inside)
        return to.add("Mul", result, to.constant(to.number("alpha", 1.0)))

    return write


def _thresholded_relu(to: _Writer) -> ir.Value:
    above = to.add("Greater", to.x(), to.constant(to.number("alpha", 1.0)))
    return to.add("Mul", to.x(), to.add("Cast", above, to=int(ir.DataType.FLOAT)))


def _crop(to: _Writer) -> ir.Value:
    border = to.node.attributes.get("border")
    if border is None or len(border.as_ints()) != 4:
        raise to.refused("must have a border of 4 sizes")
    left, top, right, bottom = border.as_ints()
    size = to.node.attributes.get("scale")
    if size is None:
        far = 2**31 - 1
        return to.cut([top, left], [-bottom or far, -right or far], [2, 3])
    height, width = size.as_ints()
    return to.cut([top, left], [top + height, left + width], [2, 3])


def _dynamic_slice(to: _Writer) -> ir.Value:
    starts, ends = to.known(1), to.known(2)
    axes = to.known(3) if len(to.node.inputs) > 3 else list(range(len(starts)))
    return to.cut(starts, ends, axes)


def _mean_variance_normalisation(to: _Writer) -> ir.Value:
    axes = [1, 2, 3] if to.integer("across_channels", 0) else [2, 3]
    centred = to.add("Sub", to.x(), to.add("ReduceMean", to.x(), axes=axes, keepdims=1))
    if not to.integer("normalize_variance", 1):
        return centred
    square = to.add("Mul", centred, centred)
    variance = to.add("ReduceMean", square, axes=axes, keepdims=1)
    above_0 = to.add("Add", to.add("Sqrt", variance), to.constant(_MVN_EPSILON))
    return to.add("Div", centred, above_0)


def _batch_normalisation(to: _Writer) -> ir.Value:
    scale, shift, mean, variance = (to.x(index) for index in range(1, 5))
    above_0 = to.add("Add", variance, to.constant(to.number("epsilon", 1e-5)))
    factor = to.add("Div", scale, to.add("Sqrt", above_0))
    offset = to.add("Sub", shift, to.add("Mul", mean, factor))
    return to.add("Add", to.add("Mul", to.x(), factor), offset)


def _group_normalisation(to: _Writer) -> ir.Value:
    groups = to.integer("num_groups", 1)
    if known_shape(to.x(1)) not in (None, (groups,)):
        shape = known_shape(to.x(1))
        raise to.refused(
            f"has scales of shape {shape}; it must have one for each of {groups} groups"
        )
    grouped = to.add("Reshape", to.x(), to.constant([0, groups, -1], np.int64))
    epsilon = to.number("epsilon", 1e-5)
    normal = to.add("InstanceNormalization", grouped, to.x(1), to.x(2), epsilon=epsilon)
    return to.add("Reshape", normal, to.add("Shape", to.x()))


# For each operator, the last opset in which it has this meaning.
_ALWAYS = 10**6
_SPELLINGS: Mapping[str, tuple[int, Callable[[_Writer], ir.Value]]] = {
    "Affine": (_ALWAYS, _affine),
    "BatchNormalization": (8, _batch_normalisation),
    "Crop": (_ALWAYS, _crop),
    "DynamicSlice": (_ALWAYS, _dynamic_slice),
    "GroupNormalization": (20, _group_normalisation),
    "ImageScaler": (_ALWAYS, _image_scaler),
    "MeanVarianceNormalization": (8, _mean_variance_normalisation),
    "ParametricSoftplus": (_ALWAYS, _of_function("Softplus")),
    "Scale": (_ALWAYS, _scale),
    "ScaledTanh": (_ALWAYS, _of_function("Tanh")),
    "ThresholdedRelu": (9, _thresholded_relu),
}


def is_spelled_out(op: str, opset: int) -> bool:
    """Return whether this module replaces the operator `op` in a model of this opset."""
    return op in _SPELLINGS and opset <= _SPELLINGS[op][0]


def spell_out_old(model: ir.Model, opset: int) -> None:
    """Replace the old operators in `model`. Call this before the opset is converted.

    `opset` is the opset of the file. Raises UnsupportedModelError if an old node is invalid.
    """
    for graph in model.graphs():
        for node in list(graph):
            _drop_value(node)
            last, write = _SPELLINGS.get(node.op_type, (0, None))
            if node.domain != "" or write is None or opset > last:
                continue
            to = _Writer(node, opset)
            if node.op_type == "BatchNormalization" and to.integer("spatial", 1):
                continue
            written = write(to)
            ir.convenience.replace_nodes_and_values(
                graph, node, [node], to.nodes, node.outputs[:1], [written]
            )


def _drop_value(node: ir.Node) -> None:
    """Remove a Pad's `value` unless its mode is `constant`. onnx's conversion would keep it."""
    mode = node.attributes.get("mode")
    if node.op_type == "Pad" and mode is not None and mode.as_string() != "constant":
        node.attributes.pop("value", None)


# The last opset in which Resize has no coordinate_transformation_mode. Upsample, its predecessor,
# has none, either.
_OF_CORNERS = 10


def keep_old_sampling(model: ir.Model, opset: int) -> None:
    """Make each Resize sample at the same positions as in opset 10 or earlier.

    `opset` is the opset of the file; nothing changes if it is newer. The opset conversion leaves
    out the attributes for these positions, and their defaults have changed. Output i is sampled at
    position i / scale. In the mode `nearest`, ONNX Runtime rounds this position down along an axis
    that grows, and up along an axis that shrinks. Constants must already be folded.
    """
    if opset > _OF_CORNERS:
        return
    for graph in model.graphs():
        for node in list(graph):
            if node.domain == "" and node.op_type == "Resize":
                _sample_as_before(graph, node)


def _sample_as_before(graph: ir.Graph, node: ir.Node) -> None:
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "asymmetric"
    )
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "nearest":
        return
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
    scales = node.inputs[2]
    if scales is None or scales.const_value is None:
        return
    factors = scales.const_value.numpy()
    if not (factors < 1).any():
        return
    if (factors <= 1).all():
        node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil")
        return
    # The image grows along some axes and shrinks along others, so there is one Resize for each.
    name = f"{node.outputs[0].name}/grown"
    shape = known_shape(node.inputs[0])
    grow = ir.Node("", "Resize", node.inputs, list(node.attributes.values()))
    grown = grow.outputs[0]
    grown.name, grown.type = name, node.outputs[0].type
    if shape is not None:
        sizes = np.floor(np.array(shape) * np.maximum(factors, 1)).astype(int)
        grown.shape = ir.Shape(sizes.tolist())
    grow.replace_input_with(2, _floats(graph, f"{name}/scales", np.maximum(factors, 1)))
    graph.insert_before(node, grow)
    node.replace_input_with(0, grown)
    node.replace_input_with(2, _floats(graph, f"{name}/rest", np.minimum(factors, 1)))
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil")


def _floats(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    constant = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array.astype(np.float32), name=name),
    )
    graph.register_initializer(constant)
    return constant


def unconverted(model: ir.Model, opset: int, target: int) -> str:
    """Return, as text, the nodes whose operators onnx cannot convert from `opset` to `target`."""
    found: dict[str, list[str]] = {}
    tried: dict[str, bool] = {}
    for node in model.graph.all_nodes():
        if node.domain != "":
            continue
        proto = ir.serde.serialize_node(node)
        for field in ("name", "input", "output"):
            proto.ClearField(field)
        key = f"{len(node.inputs)} {len(node.outputs)} {proto.SerializeToString()!r}"
        if key not in tried:
            tried[key] = _converts(node, opset, target)
        if not tried[key]:
            found.setdefault(node.op_type, []).append(str(node.name or node.outputs[0].name))
    return ", ".join(f"{op} ({', '.join(names[:3])})" for op, names in found.items())


def _converts(node: ir.Node, opset: int, target: int) -> bool:
    if not onnx.defs.has(node.op_type, opset):
        return False
    inputs = [
        onnx.helper.make_tensor_value_info(str(v.name), int(v.dtype or ir.DataType.FLOAT), None)
        for v in dict.fromkeys(node.inputs)
        if v is not None
    ]
    outputs = [
        onnx.helper.make_tensor_value_info(str(v.name), int(v.dtype or ir.DataType.FLOAT), None)
        for v in node.outputs
        if v.name
    ]
    graph = onnx.helper.make_graph([ir.serde.serialize_node(node)], "one", inputs, outputs)
    one = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        onnx.version_converter.convert_version(one, target)
    except Exception:  # noqa: BLE001  onnx raises RuntimeError, and errors of its own without a base
        return False
    return True
