"""Changes the types and zero points of quantized activations so that ONNX Runtime uses integers.

A code is an integer that represents a number. On x86, ONNX Runtime fuses a convolution with the
QuantizeLinear nodes around it only if the convolution's input is uint8. It fuses a Relu or Clip
before a QuantizeLinear only if the lowest code represents 0. Other convolutions run in float, and
the model is then slower than a float model. Therefore this module adds a number d to the codes and
to their zero point z. The codes then represent the same numbers as before. There are two cases:

    d = -z, uint8    if all codes come from a Relu or Clip, whose numbers are 0 or more
    d = 128, uint8   for other int8 values

A uint8 QuantizeLinear with the zero point 0 replaces numbers below 0 by the code 0. A Relu or Clip
before it is therefore removed. The upper bound of a Clip becomes a code:

    quantize(clip(x, 0, c)) = min(quantize(x), quantize(c), highest code),   zero point 0

The highest code is the largest value of the type minus z, for example 127 - z for int8. Codes stay
unchanged if other nodes read them, or if a node joins them with codes of another zero point.

A CPU without VNNI adds two neighbouring products of uint8 and int8 in 16 bits, and the sum
saturates at 32,767. With codes up to 255, two weights with the sum 129 can saturate it (255 · 129 =
32,895). With codes up to 127, as after an int8 Relu, it never saturates, because two int8 weights
have at most the sum ±256 (127 · 256 = 32,512). If sums may saturate on such a CPU, the filter is
converted to uint8. ONNX Runtime then adds in 32 bits, which is slower.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.engines.proto_graph import ProtoGraph
from models.engines.settled_products import settle_products
from models.engines.unfused import unfuse

_OPSET = 13
_SHIFT = 128
_HIGHEST = 255
_SUMS = np.iinfo(np.int16)
_TYPES: Mapping[int, np.iinfo[Any]] = {
    TensorProto.INT8: np.iinfo(np.int8),
    TensorProto.UINT8: np.iinfo(np.uint8),
}

# Nodes that move bytes or select the largest. A shift does not change the order of codes.
_MOVES = frozenset(
    {"Concat", "Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def on_integers(
    model: ModelProto, *, pairs_saturate: bool = False, kept: Collection[str] = ()
) -> ModelProto:
    """Return a copy of the model in which the results of QuantizeLinear are uint8 where possible.

    The represented numbers stay exactly the same. A value is not changed if a node other than
    DequantizeLinear computes with its codes, or if a node such as Concat joins it with an unchanged
    value. The values in `kept`, which are outputs of the session, are not changed either. If
    `pairs_saturate`, filters whose sums may saturate also become uint8. Before opset 13, only
    `unfuse` changes the model.
    """
    result = ModelProto()
    result.CopyFrom(model)
    unfuse(result, kept)
    # The rules below write nodes of opset 13.
    if any(o.domain in ("", "ai.onnx") and o.version < _OPSET for o in model.opset_import):
        return result
    # A subgraph of a node may read any value.
    if any(p.type == AttributeProto.GRAPH for node in model.graph.node for p in node.attribute):
        return result
    graph = ProtoGraph.of(result.graph, kept)
    changed = [change for joined in _joined(graph) if (change := _change(graph, joined))]
    for change in changed:
        _apply(graph, change)
    _drop_unread(graph)
    if pairs_saturate:
        _widen_filters(graph, {name: c.highest for c in changed for name in c.joined.names})
    settle_products(result, frozenset(kept))
    return result


@dataclass(frozen=True)
class _Joined:
    """Holds 8-bit values that must change their codes together, because nodes that only move
    elements connect them.

    It also holds the nodes that quantize and dequantize these values.
    """

    names: set[str]
    quantize: list[NodeProto]
    dequantize: list[NodeProto]


def _joined(graph: ProtoGraph) -> Iterator[_Joined]:
    """Yield groups of 8-bit values that are connected by nodes that only move elements.

    A group is left out if one of its values is an output of the graph. It is also left out if a
    node reads or writes one of its values and is no QuantizeLinear, no DequantizeLinear and no
    move.
    """
    seen: set[str] = set()
    for first in graph.proto.node:
        if first.op_type != "QuantizeLinear" or first.output[0] in seen:
            continue
        found = _Joined(set(), [], [])
        left, whole = [first.output[0]], True
        while left:
            name = left.pop()
            if name in found.names:
                continue
            found.names.add(name)
            maker = graph.makers.get(name)
            whole &= name not in graph.outputs
            if maker is not None and maker.op_type == "QuantizeLinear":
                found.quantize.append(maker)
            elif maker is not None and maker.op_type in _MOVES and len(maker.output) == 1:
                left += _moved(maker)
            else:
                whole = False
            for reader in graph.readers[name]:
                if reader.op_type == "DequantizeLinear" and reader.input[0] == name:
                    found.dequantize.append(reader)
                elif reader.op_type in _MOVES and name in _moved(reader):
                    left += reader.output
                else:
                    whole = False
        seen |= found.names
        if whole:
            yield found


def _moved(node: NodeProto) -> Sequence[str]:
    """Return the inputs whose elements a node moves, without the inputs that give a shape or
    axes."""
    return list(node.input) if node.op_type == "Concat" else [node.input[0]]


@dataclass(frozen=True)
class _Change:
    joined: _Joined
    shift: int
    # By the output of a QuantizeLinear: its new input (the activation's input), and the highest
    # code.
    behind: Mapping[str, tuple[str, int]]

    @property
    def highest(self) -> int:
        """Return the highest code that a value of the group can have after the change."""
        return max((most for _, most in self.behind.values()), default=_HIGHEST)


def _change(graph: ProtoGraph, joined: _Joined) -> _Change | None:
    """Return the change to make to the codes of a group of values, or None if the group must stay
    unchanged."""
    ends = [*joined.quantize, *joined.dequantize]
    tensors = [graph.constants.get(end.input[2]) if len(end.input) > 2 else None for end in ends]
    zeros = [numpy_helper.to_array(tensor) for tensor in tensors if tensor is not None]
    types = {tensor.data_type for tensor in tensors if tensor is not None}
    if len(zeros) < len(ends) or len(types) != 1 or not types <= _TYPES.keys():
        return None
    (kind,) = types
    one = {int(zero.item()) for zero in zeros if zero.size == 1}
    behind = {}
    if len(one) == 1 and all(zero.size == 1 for zero in zeros):
        (zero,) = one
        highest = int(_TYPES[kind].max) - zero
        for end in joined.quantize:
            if (bound := _bound(graph, end, highest)) is not None:
                behind[end.output[0]] = bound
        lowest = zero == _TYPES[kind].min
        bites = any(
            graph.makers[end.input[0]].op_type == "Clip"
            for end in joined.quantize
            if end.output[0] in behind
        )
        if len(behind) == len(joined.quantize) and (not lowest or bites):
            return _Change(joined, -zero, behind)
    return _Change(joined, _SHIFT, {}) if kind == TensorProto.INT8 else None


def _bound(graph: ProtoGraph, quantize: NodeProto, highest: int) -> tuple[str, int] | None:
    """Return the input of the Relu or Clip before a QuantizeLinear, and the highest code of its
    result.

    The code is counted from the zero point. The result is None if there is no Relu, and no Clip
    with the lower bound 0.
    """
    activation = graph.makers.get(quantize.input[0])
    scale = graph.array(quantize.input[1])
    if activation is None or scale is None or scale.size != 1:
        return None
    if activation.op_type == "Relu":
        return activation.input[0], highest
    if activation.op_type != "Clip":
        return None
    low, high = (
        graph.array(activation.input[index]) if len(activation.input) > index else None
        for index in (1, 2)
    )
    given = len(activation.input) > 2 and activation.input[2] != ""
    if low is None or low.item() != 0 or (high is None) == given:
        return None
    if high is None:
        return activation.input[0], highest
    code = np.rint(np.float32(high.item()) / np.float32(scale.item()))
    return activation.input[0], int(min(code, highest))


def _apply(graph: ProtoGraph, change: _Change) -> None:
    for end in (*change.joined.quantize, *change.joined.dequantize):
        end.input[2] = _shifted(graph, end.input[2], change.shift)
        # From opset 21 on, this attribute may repeat the type of the zero point.
        kept = [part for part in end.attribute if part.name != "output_dtype"]
        if end.op_type == "QuantizeLinear" and len(kept) < len(end.attribute):
            del end.attribute[:]
            end.attribute.extend(kept)
    for value in graph.proto.value_info:
        if value.name in change.joined.names:
            value.type.tensor_type.elem_type = TensorProto.UINT8
    for name, (x, most) in change.behind.items():
        quantize = graph.makers[name]
        quantize.input[0] = x
        if most < _HIGHEST:
            quantize.output[0] = f"{name}/unbounded"
            constant = graph.add(f"convoy/{most}", np.array(most, np.uint8))
            least = helper.make_node("Min", [quantize.output[0], constant], [name])
            least.name = f"{name}/bound"
            graph.proto.node.insert(list(graph.proto.node).index(quantize) + 1, least)


def _drop_unread(graph: ProtoGraph) -> None:
    """Remove activations that nothing reads any more.

    ONNX Runtime would otherwise compute the convolution before such an activation in float.
    """
    nodes = graph.proto.node
    read = {name for node in nodes for name in node.input} | graph.outputs
    for node in list(nodes):
        if node.op_type in ("Clip", "Relu") and node.output[0] not in read:
            nodes.remove(node)


def _shifted(graph: ProtoGraph, name: str, shift: int) -> str:
    """Return the name of a uint8 constant that equals the constant `name` plus `shift`.

    The new constant is added to the graph if it does not exist yet.
    """
    shifted = numpy_helper.to_array(graph.constants[name]).astype(np.int16) + shift
    return graph.add(f"{name}/{shift:+}", shifted.astype(np.uint8))


def _widen_filters(graph: ProtoGraph, highest: Mapping[str, int]) -> None:
    """Convert int8 filters to uint8 if sums of their products may saturate. `highest` has the
    highest code of each value, by name."""
    for product in graph.proto.node:
        if product.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        x, filter_ = (graph.makers.get(name) for name in product.input[:2])
        if x is None or filter_ is None or x.op_type != "DequantizeLinear":
            continue
        numbers = graph.array(filter_.input[0]) if filter_.op_type == "DequantizeLinear" else None
        if numbers is None or numbers.dtype != np.int8:
            continue
        if not _may_saturate(product, numbers, highest.get(x.input[0], _HIGHEST)):
            continue
        if len(filter_.input) < 3:
            zeros = np.zeros_like(graph.array(filter_.input[1]), np.int8)
            filter_.input.append(graph.add(f"{filter_.input[1]}/zero", zeros))
        for index in (0, 2):
            filter_.input[index] = _shifted(graph, filter_.input[index], _SHIFT)


def _may_saturate(product: NodeProto, filter_: NDArray[np.generic], most: int) -> bool:
    """Return whether a sum of two neighbouring products may exceed 16 bits.

    A product is a weight times a code of at most `most`. ONNX Runtime pairs the products in the
    order of the sum: input channels first, then the pixels of a window. It adds depthwise
    convolutions in 32 bits.
    """
    attributes = {part.name: helper.get_attribute_value(part) for part in product.attribute}
    if product.op_type == "Conv":
        groups = attributes.get("group", 1)
        if filter_.ndim == 4 and filter_.shape[1] == 1 < groups == len(filter_):
            return False
        sums = np.moveaxis(filter_, 1, -1).reshape(len(filter_), -1)
    elif filter_.ndim < 2:
        return True
    else:
        along = -1 if attributes.get("transB") else -2
        sums = np.moveaxis(filter_, along, -1).reshape(-1, filter_.shape[along])
    odd = sums.shape[1] % 2
    pairs = np.pad(sums.astype(np.int32), ((0, 0), (0, odd))).reshape(len(sums), -1, 2)
    above, below = (int(np.maximum(side, 0).sum(-1).max(initial=0)) for side in (pairs, -pairs))
    return most * above > _SUMS.max or -most * below < _SUMS.min
