"""Folds factors and shifts of channels into the filters of quantized convolutions.

    a · (conv(x, s · (q - z)) + b) + c = conv(x, |a| s · (q' - z)) + (a b + c),
    q' = q, or 2z - q where a < 0

A filter has the integers q, their zero point z and the scales s. Two rules use this equation. The
first rule folds a BatchNormalization after the convolution, with

    a = gamma / sqrt(variance + epsilon),   c = beta - mean · a

The second rule applies to a quantized value between a convolution and a depthwise convolution. If
each channel of the value has its own scale s, all channels get one scale S:

    conv(quantized(relu(y), s), w) = conv(quantized(relu(y S/s), S), w s/S)

The second rule holds because relu(r y) = r relu(y) for r > 0. The relu may be missing. It may also
be clip(y, 0, c) if c is at least the largest number that the integers represent. A channel may have
fewer integers above its zero point than other channels: n instead of N. For example, NNCF gives the
zero point 0 to an int8 channel that was always 0. If no number of this channel exceeds S, the
channel gets the scale s n/N, so that N integers cover the same range.

If the second rule does not apply, multiplications and additions before and after the quantization
replace the scales per channel:

    round(x / s) + z = round((x S/s + S (z - Z)) / S) + Z,   s (q - z) = s/S S (q - Z) + s (Z - z)

Every new filter has one scale above 0 per output channel. A bias is stored in 32 bits, as a
multiple of x's scale times the filter's scale. If a bias does not fit, the filter's scale is
increased to s' = max(|a| s, |bias| / (2^30 scale of x)). Then q' - z is rounded by at most 1/2. For
a 3×3×512 filter, the error of an output is at most 1/1,800 of the bias.

The rules do not apply if other nodes read the scaled values, if BatchNormalization is in training
mode, if 2z - q does not fit into 8 bits, or if the filter has scales per input channel.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from models.onnx_loader.constants import add_constant
from models.onnx_loader.integers import QuantizedConstant, constant_of, dequantized_constant

# Smaller products count as 0, because a scale for them would be too small for float32.
_LEAST = 1e-30
# The largest bias, in multiples of the scale: half the range of 32 bits.
_STEPS = 2.0**30

_Numbers = NDArray[np.float64]


def fold_into_integer_filters(model: ir.Model) -> None:
    """Fold scales and shifts into the quantized filters of `model`, whose constants must already be
    folded."""
    for node in list(model.graph):
        if node.op_type == "BatchNormalization" and node.domain == "":
            _fold_batch_norm(node, model.graph)
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear" and node.domain == "":
            _share_scale(node, model.graph)
            _spell_out_channels(node, model.graph)
    passes.RemoveUnusedNodesPass()(model)


def _fold_batch_norm(norm: ir.Node, graph: ir.Graph) -> None:
    conv = _only_reader_of(norm.inputs[0], "Conv")
    parameters = [_floats(each) for each in norm.inputs[1:5]]
    gamma, beta, mean, variance = parameters if len(parameters) == 4 else [None] * 4
    if gamma is None or beta is None or mean is None or variance is None or conv is None:
        return
    if (training := norm.attributes.get("training_mode")) is not None and training.as_int():
        return
    given = norm.attributes.get("epsilon")
    a = gamma / np.sqrt(variance + (1e-5 if given is None else given.as_float()))
    made = _scaled(conv, graph, str(norm.outputs[0].name), a, beta - mean * a)
    if made is not None:
        _replace(graph, [norm, conv], norm.outputs[0], made)


def _share_scale(quantize: ir.Node, graph: ir.Graph) -> None:
    """If only depthwise convolutions read a convolution's quantized output, replace the scales per
    channel of this output by a single scale."""
    found = _by_channel(quantize)
    if found is None:
        return
    scales, zeros, back = found
    (integers,) = quantize.outputs
    readers = [reader for each in back for reader, _ in each.outputs[0].uses()]
    if any(each.outputs[0].is_graph_output() for each in back) or not all(
        map(_is_depthwise, readers)
    ):
        return
    activation = _only_reader_of(quantize.inputs[0], "Relu") or _only_reader_of(
        quantize.inputs[0], "Clip"
    )
    y = quantize.inputs[0] if activation is None else activation.inputs[0]
    conv = _only_reader_of(y, "Conv")
    kind = np.iinfo(integers.dtype.numpy()) if integers.dtype is not None else None
    if conv is None or kind is None:
        return
    if activation is not None and not _is_relu(activation, scales, kind.max - zeros):
        return
    zero, most = zeros.min(), scales.max()
    fewer = (kind.max - zeros) / (kind.max - zero)  # the channel's codes, as a fraction of N
    if (fewer < 1).any() and (
        activation is None or (scales * (kind.max - zeros) > most)[fewer < 1].any()
    ):
        return
    scales = scales * fewer
    ahead = _scaled(conv, graph, f"{integers.name}/ahead", most / scales, np.zeros(1))
    behind = [
        _scaled(each, graph, str(each.outputs[0].name), scales / most, None, step=most)
        for each in readers
    ]
    if ahead is None or not all(behind):
        return
    _replace(graph, [conv], conv.outputs[0], ahead)
    if activation is not None and activation.op_type == "Clip":
        relu = ir.node("Relu", [activation.inputs[0]], name=activation.name)
        _replace(graph, [activation], activation.outputs[0], [relu])
    scale = add_constant(graph, f"{integers.name}/scale", np.array(most, np.float32))
    point = add_constant(graph, f"{integers.name}/zero", np.array(zero, kind.dtype))
    for each in (quantize, *back):
        each.replace_input_with(1, scale)
        each.replace_input_with(2, point)
    for reader, made in zip(readers, behind, strict=True):
        if made is not None:
            _replace(graph, [reader], reader.outputs[0], made)


def _by_channel(quantize: ir.Node) -> tuple[_Numbers, _Numbers, list[ir.Node]] | None:
    """Return the scales and zero points of a QuantizeLinear, and the DequantizeLinear nodes that
    read its result.

    Return None if the scales are not per channel, if a node of another kind reads the result, or if
    a reader has other scales or zero points.
    """
    scales, (integers,) = _floats(quantize.inputs[1]), quantize.outputs
    back = [reader for reader, _ in integers.uses()]
    if scales is None or scales.size < 2 or _axis(quantize) != 1 or integers.dtype is None:
        return None
    zero = quantize.inputs[2] if len(quantize.inputs) > 2 else None
    zeros = np.zeros(scales.shape) if zero is None else _floats(zero)
    if (
        zeros is None
        or integers.is_graph_output()
        or not all(
            each.op_type == "DequantizeLinear"
            and _axis(each) == 1
            and len(each.inputs) == len(quantize.inputs)
            and all(_same(a, b) for a, b in zip(quantize.inputs[1:], each.inputs[1:], strict=True))
            for each in back
        )
    ):
        return None
    return scales, zeros, back


def _spell_out_channels(quantize: ir.Node, graph: ir.Graph) -> None:
    """Replace scales per channel by a single scale, with multiplications before and after the
    quantization.

    With scales per channel, ONNX Runtime would run the convolution that reads the value on
    integers, and fail.
    """
    found = _by_channel(quantize)
    if found is None or quantize.inputs[0] is None:
        return
    scales, zeros, back = found
    (integers,) = quantize.outputs
    most, zero, x = scales.max(), zeros.min(), quantize.inputs[0]
    shape = (-1, *[1] * (len(x.shape or ()) - 2))
    stem = integers.name

    def constant(name: str, array: _Numbers) -> ir.Value:
        floats = np.asarray(array, np.float32)
        return add_constant(
            graph, f"{stem}/{name}", floats.reshape(shape) if array.ndim else floats
        )

    kind = integers.dtype.numpy()  # type: ignore[union-attr]  # `_by_channel` found one
    point = add_constant(graph, f"{stem}/zero", np.array(zero, kind))
    scale = add_constant(graph, f"{stem}/scale", np.array(most, np.float32))
    ahead = [ir.node("Mul", [x, constant("factor", most / scales)])]
    if np.ptp(zeros):
        ahead.append(
            ir.node("Add", [ahead[0].outputs[0], constant("shift", most * (zeros - zero))])
        )
    graph.insert_before(quantize, ahead)
    quantize.replace_input_with(0, ahead[-1].outputs[0])
    for each in back:
        numbers = each.outputs[0]
        behind = [ir.node("Mul", [numbers, constant("step", scales / most)])]
        if np.ptp(zeros):
            shift = constant("offset", scales * (zero - zeros))
            behind.append(ir.node("Add", [behind[0].outputs[0], shift]))
        ir.convenience.replace_all_uses_with(numbers, behind[-1].outputs[0])
        behind[0].replace_input_with(0, numbers)
        behind[-1].outputs[0].name, numbers.name = numbers.name, f"{numbers.name}/alike"
        graph.insert_after(each, behind)
    for each in (quantize, *back):
        each.resize_inputs(3)
        each.replace_input_with(1, scale)
        each.replace_input_with(2, point)


def _is_relu(activation: ir.Node, scales: _Numbers, codes: _Numbers) -> bool:
    """Return whether the activation gives the same quantized values as a Relu.

    `codes` has the number of integers above the zero point, for each channel.
    """
    if activation.op_type == "Relu":
        return True
    low, high = (
        _floats(activation.inputs[index]) if len(activation.inputs) > index else None
        for index in (1, 2)
    )
    if low is None or low.item() != 0 or high is None:
        return False
    reached: np.bool_ = (np.rint(high.item() / scales) >= codes).all()
    return bool(reached)


def _is_depthwise(node: ir.Node) -> bool:
    filter_ = node.inputs[1] if node.op_type == "Conv" else None
    weight = None if filter_ is None else dequantized_constant(filter_)
    groups = node.attributes.get("group")
    return (
        weight is not None
        and node.domain == ""
        and groups is not None
        and groups.as_int() == len(weight.integers)
        and weight.integers.shape[1] == 1
    )


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 1 if attribute is None else attribute.as_int()


def _same(a: ir.Value | None, b: ir.Value | None) -> bool:
    first, second = _floats(a), _floats(b)
    return a is b or (first is not None and second is not None and np.array_equal(first, second))


def _floats(value: ir.Value | None) -> _Numbers | None:
    constant = None if value is None else constant_of(value)
    return None if constant is None else constant.astype(np.float64)


def _only_reader_of(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that computes `value`, or None. The node's type must be `operator`, and only
    one node may read the value."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.op_type != operator or node.domain:
        return None
    return node if len(value.uses()) == 1 and not value.is_graph_output() else None


def _replace(
    graph: ir.Graph, old: Sequence[ir.Node], value: ir.Value, new: Sequence[ir.Node]
) -> None:
    ir.convenience.replace_nodes_and_values(graph, old[0], old, new, [value], [new[-1].outputs[0]])


def _scaled(
    conv: ir.Node,
    graph: ir.Graph,
    stem: str,
    a: _Numbers,
    c: _Numbers | None,
    step: float | None = None,
) -> list[ir.Node] | None:
    """Return nodes that compute a · conv(x) + c with a new filter and bias, or None if this is
    impossible.

    If `c` is None, only the filter is scaled, and the bias stays unchanged. `step` is the new scale
    of x, or None if the scale of x does not change.
    """
    given = conv.inputs[2] if len(conv.inputs) > 2 else None
    bias = np.zeros(1) if given is None else _floats(given)
    weight = None if conv.inputs[1] is None else dequantized_constant(conv.inputs[1])
    if weight is None or weight.axis != 0 or bias is None:
        return None
    bias = bias if c is None else bias * a + c
    bias = np.broadcast_to(bias, (len(weight.integers),))
    step = _step(conv.inputs[0]) if step is None else step
    filter_ = _scaled_filter(weight, a, np.abs(bias) / _STEPS / step)
    if filter_ is None:
        return None
    operands = [
        add_constant(graph, f"{stem}/filter", filter_.integers),
        add_constant(graph, f"{stem}/filter/scale", filter_.scale),
        add_constant(
            graph, f"{stem}/filter/zero", filter_.zero_point.astype(filter_.integers.dtype)
        ),
    ]
    dequantize = ir.node("DequantizeLinear", operands, {"axis": 0})
    dequantize.outputs[0].name = f"{stem}/filter/numbers"
    shift = add_constant(graph, f"{stem}/bias", bias.astype(np.float32))
    made = ir.Node(
        "",
        "Conv",
        [conv.inputs[0], dequantize.outputs[0], shift],
        list(conv.attributes.values()),
        name=conv.name,
    )
    return [dequantize, made]


def _step(x: ir.Value | None) -> float:
    """Return the smallest scale of a dequantized value. Return infinity for any other value."""
    node = None if x is None else x.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return np.inf
    scale = _floats(node.inputs[1])
    return np.inf if scale is None else float(scale.min())


def _scaled_filter(
    weight: QuantizedConstant, a: _Numbers, least: _Numbers
) -> QuantizedConstant | None:
    """Return a filter multiplied by `a`, which has one number per output channel.

    The scales of the result are at least `least`. Return None if an integer does not fit into its
    type.
    """
    along = (-1, *[1] * (weight.integers.ndim - 1))
    channels = (len(weight.integers),)
    scale = np.broadcast_to(weight.scale.astype(np.float64), channels)
    zero = np.broadcast_to(weight.zero_point, channels)
    exact = np.broadcast_to(np.abs(a) * scale, channels)
    step = np.maximum(exact, least)
    step = np.where(step < _LEAST, scale, step)
    factor = np.where(exact < _LEAST, 0, np.sign(a) * exact / step)
    numbers = np.rint(weight.numbers * factor.reshape(along)) + zero.reshape(along)
    kind = np.iinfo(weight.integers.dtype)
    if numbers.min() < kind.min or numbers.max() > kind.max:
        return None
    return QuantizedConstant(
        numbers.astype(weight.integers.dtype), step.astype(np.float32), zero, axis=0
    )
