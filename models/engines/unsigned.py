"""Gives activations of int8 the type uint8, in which ONNX Runtime computes on integers.

    q in int8 with the zero point z means what q + 128 means in uint8 with the zero point z + 128

On x86 ONNX Runtime joins a convolution with the nodes that quantise beside it only if its input is
uint8. Of int8 it computes most in float, and takes longer than for the float model.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

_SHIFT = 128

# They move bytes, or take the largest: the order of the numbers is that of the shifted ones.
_MOVES = frozenset(
    {"Concat", "Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def with_unsigned_activations(model: ModelProto) -> ModelProto:
    """Return the model, or a copy in which what QuantizeLinear makes of int8 is uint8.

    Every number keeps its meaning to the bit. A value that is read by nodes with a meaning of int8
    of their own stays as it is, and so does what is joined with it.
    """
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    changed = _changeable(graph, constants)
    if not changed:
        return model
    for node in graph.node:
        if _quantises(node, changed):
            node.input[2] = _shifted(graph, constants, node.input[2])
            # From opset 21 on it may say the type of the zero point once more.
            kept = [part for part in node.attribute if part.name != "output_dtype"]
            if node.op_type == "QuantizeLinear" and len(kept) < len(node.attribute):
                del node.attribute[:]
                node.attribute.extend(kept)
    for value in graph.value_info:
        if value.name in changed:
            value.type.tensor_type.elem_type = TensorProto.UINT8
    return result


def _changeable(graph: GraphProto, constants: Mapping[str, TensorProto]) -> set[str]:
    """Return the names of the values of int8 that only nodes read which may as well read uint8.

    There are none where a node has a graph of its own, which may read any value.
    """
    if any(part.type == AttributeProto.GRAPH for node in graph.node for part in node.attribute):
        return set()
    makers: dict[str, NodeProto] = {}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    found: set[str] = set()
    for node in graph.node:
        moved = node.op_type in _MOVES and found.intersection(_moved(node))
        if moved or (node.op_type == "QuantizeLinear" and _is_signed(node, constants)):
            found.add(node.output[0])
        makers.update(dict.fromkeys(node.output, node))
        for name in node.input:
            readers[name].append(node)
    found.difference_update(output.name for output in graph.output)

    def may_change(name: str) -> bool:
        maker = makers[name]
        if maker.op_type in _MOVES and not found.issuperset(_moved(maker)):
            return False
        return all(
            found.issuperset(reader.output)
            if reader.op_type in _MOVES and name in _moved(reader)
            else reader.op_type == "DequantizeLinear" and _is_signed(reader, constants)
            for reader in readers[name]
        )

    while refused := {name for name in found if not may_change(name)}:
        found -= refused
    return found


def _moved(node: NodeProto) -> Sequence[str]:
    """Return the inputs of a node that moves bytes which are not a shape or axes."""
    return list(node.input) if node.op_type == "Concat" else [node.input[0]]


def _quantises(node: NodeProto, changed: set[str]) -> bool:
    return (node.op_type == "QuantizeLinear" and node.output[0] in changed) or (
        node.op_type == "DequantizeLinear" and node.input[0] in changed
    )


def _is_signed(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    zero = constants.get(node.input[2]) if len(node.input) > 2 else None
    return zero is not None and zero.data_type == TensorProto.INT8


def _shifted(graph: GraphProto, constants: dict[str, TensorProto], name: str) -> str:
    """Return the name of the zero point of uint8, which is added unless it is there."""
    unsigned = f"{name}/unsigned"
    if unsigned not in constants:
        zero = numpy_helper.to_array(constants[name]).astype(np.int16) + _SHIFT
        graph.initializer.append(numpy_helper.from_array(zero.astype(np.uint8), unsigned))
        constants[unsigned] = graph.initializer[-1]
    return unsigned
