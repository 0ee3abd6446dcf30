"""Limits the number of axes of every value before a library processes the graph.

Shape inference stores every axis of every value. Gather(v, v) has about twice as many axes as v, so
a chain of 30 such nodes would need memory for 2**30 axes. This module infers the number of axes
node by node, and stops at the first value with too many.
"""

from collections.abc import Iterator, Mapping
from math import prod

import onnx
import onnx_ir as ir
from onnx import TypeProto
from onnxscript.optimizer import basic_constant_propagation

from models.onnx_loader.limits.bounds import RANK_LIMIT
from models.onnx_loader.limits.sizes import too_many_axes

# A longer constant cannot be the shape of an allowed value.
_SHAPE_ENTRIES = 2 * RANK_LIMIT

_NOT_INFERRED = (
    onnx.defs.SchemaError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)

_Types = dict[ir.Value, TypeProto]


def check_ranks(model: ir.Model) -> None:
    """Raise an error if a value of the model has too many axes. The sizes of the axes may be
    unknown."""
    basic_constant_propagation(model.graph.all_nodes())
    types: _Types = {}
    ranks: dict[ir.Value, int] = {}
    for node in _inner_first(model.graph):
        for value in node.inputs:
            if value is not None and value not in types:
                _note(value, types)
        if node.op_type == "Constant":
            continue
        inferred = _inferred(node, types, model.opset_imports)
        for value in node.outputs:
            known = inferred.get(str(value.name))
            if known is not None:
                types[value] = known
            rank = _rank(value, types, ranks)
            ranks[value] = _bound(node, types, ranks) if rank is None else rank
            if ranks[value] > RANK_LIMIT:
                raise too_many_axes(value, ranks[value])


def _inner_first(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield all nodes in order. The nodes of a subgraph come before the node that contains it."""
    for node in graph:
        for inner in _subgraphs(node):
            yield from _inner_first(inner)
        yield node


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _note(value: ir.Value, types: _Types) -> None:
    """Record the declared type of an input or constant."""
    kind: ir.TypeProtocol | None = value.type
    shape: ir.ShapeProtocol | None = value.shape
    if value.const_value is not None:
        kind, shape = ir.TensorType(value.const_value.dtype), value.const_value.shape
    elif value.producer() is not None:
        return
    if kind is not None:
        types[value] = ir.serde.serialize_type(kind)
        if shape is not None:
            ir.serde.serialize_shape_into(types[value], shape)


def _inferred(node: ir.Node, types: _Types, opsets: Mapping[str, int]) -> dict[str, TypeProto]:
    """Return the types of the node's outputs by name, except types that onnx cannot infer."""
    given = [value for value in node.inputs if value is not None]
    if any(value not in types for value in given) or any(True for _ in _subgraphs(node)):
        return {}
    constants = {
        str(value.name): ir.serde.serialize_tensor(value.const_value)
        for value in given
        if value.const_value is not None and value.const_value.size <= _SHAPE_ENTRIES
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        return dict(
            onnx.shape_inference.infer_node_outputs(
                schema,
                ir.serde.serialize_node(node),
                {str(value.name): types[value] for value in given},
                constants,
            )
        )
    except _NOT_INFERRED:
        return {}  # an unknown operator or a contradiction, which is reported elsewhere


def _rank(value: ir.Value, types: _Types, ranks: Mapping[ir.Value, int]) -> int | None:
    kind = types.get(value)
    if kind is not None and kind.tensor_type.HasField("shape"):
        return len(kind.tensor_type.shape.dim)
    return ranks.get(value)


def _entries(value: ir.Value | None, types: _Types) -> int:
    """Return the number of elements of `value`, or 0 if it is unknown. For a shape, this is the
    number of axes."""
    if value is None or value not in types:
        return 0
    return prod(dim.dim_value for dim in types[value].tensor_type.shape.dim)


def _bound(node: ir.Node, types: _Types, ranks: Mapping[ir.Value, int]) -> int:
    """Return an upper bound on the number of axes of an output of `node`."""
    given = [0 if value is None else _rank(value, types, ranks) or 0 for value in node.inputs]
    inner = (value for graph in _subgraphs(node) for value in graph.outputs)
    given += [_rank(value, types, ranks) or 0 for value in inner]
    highest = max(given, default=0)
    second = node.inputs[1] if len(node.inputs) > 1 else None
    match node.op_type:
        case "Reshape":
            return _entries(second, types)
        case "ConstantOfShape":
            return _entries(node.inputs[0], types) if node.inputs else 0
        case "Expand":
            return max(highest, _entries(second, types))
        case "Gather" | "GatherND":
            return sum(given)
        case "Unsqueeze":
            return highest + _entries(second, types)
        case "OneHot" | "ConcatFromSequence" | "Loop" | "Scan" | "StringSplit":
            return highest + 1
        case _:
            return highest
