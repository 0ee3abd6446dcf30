"""Prepares each convolution of a quantized model for ONNX Runtime's fast kernels.

ONNX Runtime fuses a convolution with the QuantizeLinear nodes before and after it, but only if the
bias is quantized, too. Models made for TensorRT may add a convolution's result to a shortcut before
they quantize the sum. ONNX Runtime cannot fuse such a convolution. It would run the convolution in
float, without a fast kernel, and dequantize the filter again in every run. Each convolution is
therefore rewritten in one of these ways:

    bias       b                               →  s t round(b / (s t))
    product    conv(s (x - z), t (w - v)) + b  →  s t (p - z)·(w - v) + b
    floats     conv(x, t (w - v))              →  conv(x, filter)

bias: For convolutions that ONNX Runtime can fuse. A float bias is quantized.
product: For other convolutions of quantized tensors, if there are many filters for the size of the
    window. The convolution becomes a matrix product of bytes. p are the bytes of each window.
floats: For all other convolutions. The filter becomes constant floats.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from models.engines.proto_graph import ProtoGraph, QuantizedWeights, attribute_of

_CONTRIB = "com.microsoft"
# The end of a Slice that is not cut: larger than any axis.
_FAR = 2**31 - 1
# The number of filters that a convolution must have per copy of its pixels. For 3×3 windows, a
# product of bytes takes 0.55 to 0.88 of the time in float with 64 to 512 filters, and 1.2 times
# that time with 32 filters.
_FILTERS_A_COPY = 7


def settle_products(model: ModelProto, kept: AbstractSet[str] = frozenset()) -> None:
    """Rewrite the convolutions of `model` in place. The values in `kept` are not removed.

    Quantized activations in `model` must already be uint8 where possible.
    """
    graph = ProtoGraph.of(model.graph, kept)
    unread: set[str] = set()
    for node in list(graph.proto.node):
        if node.op_type not in ("Conv", "Gemm") or node.domain:
            continue
        x, weights = graph.makers.get(node.input[0]), graph.weights(node.input[1])
        is_joined = x is not None and x.op_type == "DequantizeLinear"
        is_joined = is_joined and _is_quantized(graph, node.output[0])
        if x is not None and is_joined:
            _quantize_bias(graph, node, x)
        elif node.op_type == "Conv" and weights is not None:
            unread.update(node.input)
            if not (x and _reads_bytes(graph, x) and _is_product(node, weights)):
                _as_floats(graph, node, weights)
            elif _as_product(graph, node, x, weights):
                _import_contrib(model)
    graph.drop(unread)


def _import_contrib(model: ModelProto) -> None:
    if all(opset.domain != _CONTRIB for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))


def _is_quantized(graph: ProtoGraph, name: str) -> bool:
    """Return whether all nodes that read a value quantize it, directly or after a Clip or Relu."""
    readers = graph.readers[name] if name not in graph.outputs else []
    return bool(readers) and all(
        reader.op_type == "QuantizeLinear"
        or (reader.op_type in ("Clip", "Relu") and _is_quantized(graph, reader.output[0]))
        for reader in readers
    )


def _reads_bytes(graph: ProtoGraph, x: NodeProto) -> bool:
    """Return whether a node dequantizes uint8 values with a single scale."""
    if x.op_type != "DequantizeLinear" or len(x.input) < 3:
        return False
    scale, zero = graph.array(x.input[1]), graph.array(x.input[2])
    if scale is None or zero is None:
        return False
    return scale.size == zero.size == 1 and zero.dtype == np.uint8


def _is_product(conv: NodeProto, weights: QuantizedWeights) -> bool:
    """Return whether a convolution is 2-D and faster as a matrix product of 8-bit integers. The
    product needs a copy of the bytes of each window."""
    filters, _, *window = weights.integers.shape
    is_plain = (
        attribute_of(conv, "group", 1) == 1
        and attribute_of(conv, "auto_pad", b"NOTSET") == b"NOTSET"
    )
    copies = prod(window)
    return is_plain and len(window) == 2 and (copies == 1 or filters >= _FILTERS_A_COPY * copies)


def _windows(
    graph: ProtoGraph, conv: NodeProto, x: NodeProto, window: Sequence[int], stem: str
) -> tuple[list[NodeProto], str]:
    """Return nodes that gather the bytes of each window along the channel axis, and the name of
    their result."""
    nodes = [helper.make_node("Transpose", [x.input[0]], [f"{stem}/pixels"], perm=[0, 2, 3, 1])]
    pads, steps = attribute_of(conv, "pads", [0] * 4), attribute_of(conv, "strides", [1, 1])
    apart = attribute_of(conv, "dilations", [1, 1])
    if any(pads):
        widths = np.array([0, *pads[:2], 0, 0, *pads[2:], 0])
        sizes = graph.add(f"{stem}/widths", widths), x.input[2]
        nodes.append(helper.make_node("Pad", [nodes[-1].output[0], *sizes], [f"{stem}/padded"]))
    pixels, parts = nodes[-1].output[0], []
    for at in np.ndindex(*window):
        starts = [i * d for i, d in zip(at, apart, strict=True)]
        # Counted from the end of the axis; 0 would mean its beginning.
        ends = [(i - k + 1) * d or _FAR for i, k, d in zip(at, window, apart, strict=True)]
        if {*starts, *steps} == {0, 1} and set(ends) == {_FAR}:
            parts.append(pixels)
            continue
        name = f"{stem}/{'-'.join(map(str, at))}"
        cut = [
            graph.add(f"{name}/{what}", np.array(numbers))
            for what, numbers in (("starts", starts), ("ends", ends))
        ]
        beside = [
            graph.add(f"convoy/{what}", np.array(numbers))
            for what, numbers in (("rows", (1, 2)), (f"steps/{steps[0]}-{steps[1]}", steps))
        ]
        nodes.append(helper.make_node("Slice", [pixels, *cut, *beside], [name]))
        parts.append(name)
    if len(parts) > 1:
        nodes.append(helper.make_node("Concat", parts, [f"{stem}/windows"], axis=3))
    for node in nodes:
        node.name = node.output[0]
    return nodes, nodes[-1].output[0]


def _as_product(
    graph: ProtoGraph, conv: NodeProto, x: NodeProto, weights: QuantizedWeights
) -> bool:
    """Replace a convolution by a matrix product of bytes. Returns False if the bias is not
    constant."""
    (y,), stem = conv.output, f"convoy/{conv.output[0]}/product"
    filters, _, *window = weights.integers.shape
    bias = _bias(graph, conv, filters)
    if bias is None:
        return False
    matrix = np.moveaxis(weights.integers, 1, -1).reshape(filters, -1).T
    nodes, windows = _windows(graph, conv, x, window, stem)
    # A single zero point is faster than several equal ones.
    zero = weights.zero if np.ptp(weights.zero) else weights.zero[0]
    operands = [
        windows,
        graph.add(f"{stem}/filter", np.ascontiguousarray(matrix)),
        x.input[1],
        graph.add(f"{stem}/scale", np.resize(weights.scale, filters)),
        x.input[2],
        graph.add(f"{stem}/zero", np.asarray(zero)),
        graph.add(f"{stem}/bias", bias),
    ]
    made = [
        *nodes,
        helper.make_node("MatMulIntegerToFloat", operands, [stem], conv.name, domain=_CONTRIB),
        helper.make_node("Transpose", [stem], [y], f"{stem}/planes", perm=[0, 3, 1, 2]),
    ]
    at = list(graph.proto.node).index(conv)
    graph.proto.node.remove(conv)
    for index, node in enumerate(made, at):
        graph.proto.node.insert(index, node)
    return True


def _bias(graph: ProtoGraph, conv: NodeProto, filters: int) -> NDArray[np.float32] | None:
    """Return the bias of a convolution, or None if the bias is computed.

    The result is zeros if the convolution has no bias.
    """
    if len(conv.input) < 3 or not conv.input[2]:
        return np.zeros(filters, np.float32)
    if (weights := graph.weights(conv.input[2])) is not None:
        return weights.floats
    floats = graph.array(conv.input[2])
    return None if floats is None else floats.astype(np.float32)


def _as_floats(graph: ProtoGraph, conv: NodeProto, weights: QuantizedWeights) -> None:
    conv.input[1] = graph.add(f"convoy/{conv.input[1]}/floats", weights.floats)
    if len(conv.input) > 2 and (bias := graph.weights(conv.input[2])) is not None:
        conv.input[2] = graph.add(f"convoy/{conv.input[2]}/floats", bias.floats)


def _quantize_bias(graph: ProtoGraph, node: NodeProto, x: NodeProto) -> None:
    """Quantize a float bias to 32-bit integers. Their scale is the input's scale times the filter's
    scale. The bias stays float if an integer would exceed 32 bits."""
    bias = graph.array(node.input[2]) if len(node.input) > 2 else None
    filter_ = graph.makers.get(node.input[1])
    if bias is None or filter_ is None or filter_.op_type != "DequantizeLinear":
        return
    scales = [graph.array(each.input[1]) for each in (x, filter_)]
    if attribute_of(node, "alpha", 1.0) != 1 or attribute_of(node, "beta", 1.0) != 1:
        return
    ahead, own = scales
    if ahead is None or own is None or ahead.size > 1 or own.size not in (1, bias.size):
        return
    if bias.ndim > 1 and bias.shape[-1] != bias.size:  # a Gemm's bias may have several rows
        return
    step = np.resize(ahead.astype(np.float32) * own.astype(np.float32), bias.size)
    with np.errstate(divide="ignore", invalid="ignore"):  # a filter may be all zeros
        row = bias.reshape(-1).astype(np.float64)
        numbers = np.rint(np.where(row == 0, 0, row / step))
    if not (np.abs(numbers) < 2**31).all():
        return
    stem = f"convoy/{node.output[0]}/bias"
    operands = [
        graph.add(f"{stem}/numbers", numbers.astype(np.int32)),
        graph.add(f"{stem}/step", step),
    ]
    made = helper.make_node("DequantizeLinear", operands, [stem], stem, axis=0)
    graph.proto.node.insert(list(graph.proto.node).index(node), made)
    node.input[2] = stem
