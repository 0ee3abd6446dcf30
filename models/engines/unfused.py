"""Keeps ONNX Runtime from fusing the nodes that its integer kernels would compute wrong.

ONNX Runtime fuses a node with the DequantizeLinear nodes before it. In these cases, the result is
wrong, or the session fails:

    scales   A kernel takes several scales as those of a filter's outputs: of axis 0 of a Conv's
             filter, and of the last axis of a matrix. DequantizeLinear's scales may belong to
             another axis, such as the inputs, or to blocks. Other operands and results have a
             single scale in every kernel.
    bias     A QGemm takes the scale of its bias as the input's scale times the filter's scale.
             DequantizeLinear's scale may be another one: quantize_static multiplies it by beta.
    windows  With ceil_mode, the last window of an AveragePool may reach beyond the padding. With
             count_include_pad, QLinearAveragePool also counts the positions beyond the padding. It
             has no dilations.
    floats   MatMulNBits, which multiplies floats with quantized weights, rounds the floats to 8
             bits. Its setting for float32 takes 20 times as long as a product of floats.

Constants become floats, which ONNX Runtime does not fuse. A computed operand becomes the Sum of one
value, which has the same numbers. All other nodes are fused as before.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from models.engines.proto_graph import ProtoGraph, attribute_of

# Operators that ONNX Runtime fuses with each DequantizeLinear before them.
_FUSED = frozenset(
    {
        "Add", "AveragePool", "Concat", "Conv", "Gemm", "GlobalAveragePool", "LeakyRelu", "MatMul",
        "Mul", "Sigmoid", "Softmax", "Where",
    }
)  # fmt: skip
# ONNX Runtime moves these operators ahead of a DequantizeLinear.
_MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
# The largest relative difference of two equal scales that were rounded differently.
_ROUNDING = 1e-6


def unfuse(model: ModelProto, kept: Collection[str] = ()) -> None:
    """Rewrite `model` in place, so that ONNX Runtime fuses no node that it would compute wrong.

    The represented numbers stay the same. The values in `kept` are not removed.
    """
    _unfuse(ProtoGraph.of(model.graph, kept))


def _unfuse(graph: ProtoGraph) -> None:
    for node in graph.proto.node:
        if node.op_type == "Constant" and (value := attribute_of(node, "value", None)) is not None:
            graph.constants[node.output[0]] = value
    unread: set[str] = set()
    for node in list(graph.proto.node):
        if node.domain not in ("", "ai.onnx") or node.op_type not in _FUSED:
            continue
        wrong = {i for i in range(len(node.input)) if _has_other_scales(graph, node, i)}
        if node.op_type == "AveragePool":
            _drop_dilations(node)
        if _is_beyond_kernel(graph, node) or _has_several_scales(graph, node.output[0]):
            wrong.add(1 if node.op_type == "Where" else 0)  # a condition is never quantized
        if _multiplies_floats(graph, node):
            wrong.add(1)
        for index in sorted(wrong):
            unread.add(node.input[index])
            _in_float(graph, node, index)
    subgraphs = list(_subgraphs(graph.proto))
    for subgraph in subgraphs:
        inner = ProtoGraph.of(subgraph)
        inner.constants.update({**graph.constants, **inner.constants})
        _unfuse(inner)
    if not subgraphs:  # they may read any value
        graph.drop(unread)


def _subgraphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for part in node.attribute:
            if part.type == AttributeProto.GRAPH:
                yield part.g


def _dequantize(graph: ProtoGraph, name: str) -> NodeProto | None:
    """Return the DequantizeLinear that computes the value `name`, or None."""
    node = graph.makers.get(name)
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _has_other_scales(graph: ProtoGraph, node: NodeProto, index: int) -> bool:
    """Return whether an operand is dequantized with scales that a kernel does not take as they are
    meant."""
    if index == 2 and node.op_type in ("Conv", "Gemm"):
        return _has_own_scale(graph, node)
    name, is_transposed = node.input[index], False
    # ONNX Runtime moves a Transpose ahead of the DequantizeLinear.
    while (moved := graph.makers.get(name)) is not None and moved.op_type == "Transpose":
        is_transposed ^= attribute_of(moved, "perm", None) != [0, 1]
        name = moved.input[0]
    made = _dequantize(graph, name)
    scale = None if made is None else graph.array(made.input[1])
    if made is None or scale is None or scale.size == 1:
        return False
    if index != 1 or node.op_type not in ("Conv", "Gemm", "MatMul") or scale.ndim > 1:
        return True
    integers = graph.array(made.input[0])
    if integers is None or (integers.ndim != 2 and (is_transposed or node.op_type != "Conv")):
        return True
    has_rows = node.op_type == "Conv" or bool(attribute_of(node, "transB", 0))
    axis = attribute_of(made, "axis", 1) % integers.ndim
    return bool(axis != (0 if has_rows != is_transposed else 1))


def _has_several_scales(graph: ProtoGraph, name: str) -> bool:
    """Return whether a value is quantized with several scales."""
    scales = (
        graph.array(reader.input[1])
        for reader in graph.readers[name]
        if reader.op_type == "QuantizeLinear"
    )
    return any(scale is not None and scale.size > 1 for scale in scales)


def _has_own_scale(graph: ProtoGraph, node: NodeProto) -> bool:
    """Return whether the bias of a Gemm is dequantized with a scale other than the input's scale
    times the filter's scale, or with a zero point other than 0.

    ONNX Runtime itself compares these scales if the node is a Conv.
    """
    x, filter_, bias = (_dequantize(graph, name) for name in node.input[:3])
    if node.op_type != "Gemm" or x is None or filter_ is None or bias is None:
        return False
    if len(bias.input) > 2 and bias.input[2]:
        zero = graph.array(bias.input[2])
        if zero is None or zero.any():
            return True
    scales = [graph.array(each.input[1]) for each in (x, filter_, bias)]
    ahead, own, given = (None if s is None else s.astype(np.float64).reshape(-1) for s in scales)
    if ahead is None or own is None or given is None:
        return True
    step = ahead * own if ahead.size == 1 else own
    if given.size not in (1, step.size) and step.size != 1:
        return True
    return not np.allclose(given, step, rtol=_ROUNDING, atol=0)


def _multiplies_floats(graph: ProtoGraph, node: NodeProto) -> bool:
    """Return whether only the second operand of a matrix product is dequantized, from a
    constant."""
    if node.op_type not in ("Gemm", "MatMul"):
        return False
    x, weights = (_dequantize(graph, _moved_from(graph, name)) for name in node.input[:2])
    return x is None and weights is not None and graph.array(weights.input[0]) is not None


def _moved_from(graph: ProtoGraph, name: str) -> str:
    """Return the value from which only nodes that move elements compute the value `name`."""
    while (made := graph.makers.get(name)) is not None and made.op_type in _MOVES:
        name = made.input[0]
    return name


def _drop_dilations(pool: NodeProto) -> None:
    """Remove the attribute `dilations` if it has its default. QLinearAveragePool does not know the
    attribute."""
    for part in pool.attribute:
        if part.name == "dilations" and set(part.ints) == {1}:
            pool.attribute.remove(part)
            return


def _is_beyond_kernel(graph: ProtoGraph, pool: NodeProto) -> bool:
    """Return whether a node is an AveragePool that QLinearAveragePool cannot compute."""
    if pool.op_type != "AveragePool":
        return False
    if attribute_of(pool, "dilations", None) is not None:
        return True
    if not (attribute_of(pool, "ceil_mode", 0) and attribute_of(pool, "count_include_pad", 0)):
        return False
    auto_pad = attribute_of(pool, "auto_pad", b"NOTSET")
    if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        return False
    kernel = attribute_of(pool, "kernel_shape", [])
    axes = len(kernel)
    sizes = _sizes(graph, pool.input[0])
    if sizes is None or len(sizes) != axes:
        return True
    pads = attribute_of(pool, "pads", [0] * 2 * axes) if auto_pad == b"NOTSET" else [0] * 2 * axes
    steps = attribute_of(pool, "strides", [1] * axes)
    return any(
        (size + pads[i] + pads[i + axes] - kernel[i]) % steps[i] for i, size in enumerate(sizes)
    )


def _sizes(graph: ProtoGraph, name: str) -> Sequence[int] | None:
    """Return the sizes of an image's spatial axes, or None if one is unknown."""
    declared = (*graph.proto.value_info, *graph.proto.input)
    value = next((each for each in declared if each.name == name), None)
    if value is None:
        return None
    sizes = [axis.dim_value for axis in value.type.tensor_type.shape.dim[2:]]
    return sizes if all(sizes) else None


def _in_float(graph: ProtoGraph, node: NodeProto, index: int) -> None:
    """Give a node an operand with the same numbers that ONNX Runtime does not fuse."""
    name = node.input[index]
    made = _dequantize(graph, name)
    floats = None if made is None else _floats(graph, made)
    if floats is not None:
        node.input[index] = graph.add(f"convoy/{name}/floats", floats)
        return
    copy = f"convoy/{node.output[0]}/{index}"
    at = list(graph.proto.node).index(node)
    graph.proto.node.insert(at, helper.make_node("Sum", [name], [copy], name=copy))
    node.input[index] = copy


def _floats(graph: ProtoGraph, dequantize: NodeProto) -> NDArray[np.generic] | None:
    """Return the numbers of a dequantized constant, or None if they are computed."""
    tensors = [graph.array(name) for name in dequantize.input if name]
    if any(tensor is None for tensor in tensors) or attribute_of(dequantize, "output_dtype", 0):
        return None
    integers, scale, *zeros = (np.asarray(tensor) for tensor in tensors)
    axis, block = attribute_of(dequantize, "axis", 1), attribute_of(dequantize, "block_size", 0)

    def along(entries: NDArray[Any]) -> NDArray[Any]:
        if entries.size == 1:
            return entries.reshape(())
        if block:
            entries = np.repeat(entries, block, axis)
            return np.take(entries, range(integers.shape[axis]), axis)
        shape = [1] * integers.ndim
        shape[axis] = -1
        return entries.reshape(shape)

    zero = along(zeros[0].astype(np.float32)) if zeros else 0
    floats: NDArray[np.generic] = (integers.astype(np.float32) - zero) * along(scale)
    return floats.astype(scale.dtype)
