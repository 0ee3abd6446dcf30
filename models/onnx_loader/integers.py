"""Replaces each integer operator by dequantization, a float operator and quantization.

    QLinearConv(x, w, bias) = QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), ...))

As a result, quantized models of all exporters have the same form. ONNX Runtime fuses these nodes
again and runs the same integer kernel. Weights remain integers, because ONNX Runtime would not fuse
float weights. `constant_of` returns them as floats.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from models.errors import UnsupportedModelError
from models.onnx_loader.constants import add_constant

_CONTRIB = "com.microsoft"

Parameters = tuple[int, int, int]
"""The indices of three inputs of a node: a tensor of integers, its scale and its zero point."""


@dataclass(frozen=True)
class _Spelling:
    """The float operator that replaces an integer operator, with its operands."""

    operator: str
    reads: tuple[Parameters, ...]
    writes: tuple[int, int]  # the indices of the inputs with the result's scale and zero point
    bias: int | None = None  # the index of the int32 bias, in units of the product of both scales


_PAIR = ((0, 1, 2), (3, 4, 5))
_SPELLINGS = {
    ("", "QLinearConv"): _Spelling("Conv", _PAIR, (6, 7), bias=8),
    ("", "QLinearMatMul"): _Spelling("MatMul", _PAIR, (6, 7)),
    (_CONTRIB, "QGemm"): _Spelling("Gemm", _PAIR, (7, 8), bias=6),
    (_CONTRIB, "QLinearAdd"): _Spelling("Add", _PAIR, (6, 7)),
    (_CONTRIB, "QLinearMul"): _Spelling("Mul", _PAIR, (6, 7)),
    **{
        (_CONTRIB, f"QLinear{operator}"): _Spelling(operator, ((0, 1, 2),), (3, 4))
        for operator in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")
    },
}
# Attributes that only Microsoft's operators have, with the value at which both operators are equal.
_THEIRS = {"channels_last": 0}
# Before this opset, the axis of a Softmax has another meaning.
_SOFTMAX_OPSET = 13

# Operators that ONNX Runtime computes on integers if each operand is dequantized directly before.
_ON_INTEGERS = frozenset({"Add", "Conv", "Gemm", "MatMul", "Mul"})
_INTEGERS = {
    ir.DataType.INT8: np.dtype(np.int8),
    ir.DataType.UINT8: np.dtype(np.uint8),
    ir.DataType.INT32: np.dtype(np.int32),
}

BYTE_SHIFTS = {ir.DataType.UINT8: 0, ir.DataType.INT8: 128}
"""The difference between a stored byte and the integer that it represents."""


def spell_out_integers(model: ir.Model) -> None:
    """Replace the integer operators in `model` for which a replacement is known.

    The model's opset must already be converted.
    """
    for node in list(model.graph):
        if node.domain == _CONTRIB and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = ""
        elif (node.domain, node.op_type) == (_CONTRIB, "QLinearConcat"):
            triples = [(i, i + 1, i + 2) for i in range(2, len(node.inputs) - 2, 3)]
            _spell_out(node, _Spelling("Concat", tuple(triples), (0, 1)))
        elif spelling := _SPELLINGS.get((node.domain, node.op_type)):
            _spell_out(node, spelling)


def _spell_out(node: ir.Node, spelling: _Spelling) -> None:
    attributes = {attribute.name: attribute for attribute in node.attributes.values()}
    for name, value in _THEIRS.items():
        if name in attributes and attributes.pop(name).value != value:
            return
    if spelling.operator == "Softmax" and attributes.pop("opset").as_int() < _SOFTMAX_OPSET:
        return
    new = [
        _dequantize(node, parameters, _axis(node, spelling, index))
        for index, parameters in enumerate(spelling.reads)
    ]
    if spelling.bias is not None and input_of(node, spelling.bias) is not None:
        _check_bias(node, spelling.bias)
        scales = [_constant(input_of(node, scale)) for _, scale, _ in spelling.reads]
        # A QGemm multiplies its bias by alpha, too.
        alpha = attributes.get("alpha")
        step = np.ones((), np.float32) * np.float32(1 if alpha is None else alpha.as_float())
        for scale in scales:
            if scale is None:
                return
            step = step * scale.astype(np.float32)
        new.append(_dequantize_bias(node, spelling.bias, step))
    floats = ir.Node(
        "",
        spelling.operator,
        [each.outputs[0] for each in new],
        list(attributes.values()),
        name=node.name,
    )
    (output,) = node.outputs
    floats.outputs[0].name = f"{output.name}/float"
    new.append(floats)
    result = [input_of(node, index) for index in spelling.writes]
    if result[0] is not None:  # the result of a QGemm may be float
        new.append(ir.node("QuantizeLinear", [floats.outputs[0], *result]))
    if isinstance(node.graph, ir.Graph):
        ir.convenience.replace_nodes_and_values(
            node.graph, node, [node], new, [output], [new[-1].outputs[0]]
        )


def _check_bias(node: ir.Node, index: int) -> None:
    """Raise UnsupportedModelError if a bias is at the limit of 32 bits, where sums overflow."""
    bias, limits = _constant(input_of(node, index)), np.iinfo(np.int32)
    if bias is not None and np.isin(bias, (limits.min, limits.max)).any():
        raise UnsupportedModelError(
            f"{node.op_type} {node.name or node.outputs[0].name}: its bias is at the limit of 32"
            " bits, so that sums overflow and scores are arbitrary. ONNX Runtime's quantizer writes"
            " such a bias for a Gemm with beta = 0; remove this bias, and quantize again"
        )


def _axis(node: ir.Node, spelling: _Spelling, index: int) -> int:
    """Return the axis of operand `index` along which the scales may differ."""
    transposed = node.attributes.get("transB")
    if spelling.operator == "Conv" or (transposed is not None and transposed.as_int()):
        return 0 if index else 1
    return -1


def _dequantize(node: ir.Node, parameters: Parameters, axis: int) -> ir.Node:
    tensor, scale, zero_point = (input_of(node, index) for index in parameters)
    made = ir.node("DequantizeLinear", [tensor, scale, zero_point], {"axis": axis})
    made.outputs[0].name = f"{node.outputs[0].name}/operand{parameters[0]}"
    return made


def _dequantize_bias(node: ir.Node, bias: int, step: NDArray[np.float32]) -> ir.Node:
    name = f"{node.outputs[0].name}/bias"
    values = []
    for suffix, array in (("scale", step), ("zero", np.zeros(step.shape, np.int32))):
        if isinstance(node.graph, ir.Graph):
            values.append(add_constant(node.graph, f"{name}/{suffix}", array))
    made = ir.node("DequantizeLinear", [input_of(node, bias), *values], {"axis": 0})
    made.outputs[0].name = name
    return made


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if the node does not have it."""
    return node.inputs[index] if index < len(node.inputs) else None


def _constant(value: ir.Value | None) -> NDArray[np.generic] | None:
    if value is None or value.const_value is None:
        return None
    array: NDArray[np.generic] = value.const_value.numpy()
    return array


def stays_integer(node: ir.Node) -> bool:
    """Return whether a node dequantizes a constant that only operators with integer kernels
    read."""
    (output,) = node.outputs[:1] or (None,)
    return (
        node.op_type == "DequantizeLinear"
        and node.domain == ""
        and output is not None
        and not output.is_graph_output()
        and input_of(node, 0) is not None
        and dequantized(node) is not None
        and all(user.op_type in _ON_INTEGERS for user, _ in output.uses())
    )


@dataclass(frozen=True)
class QuantizedConstant:
    """A quantized constant. An integer q represents the number scale · (q - zero_point)."""

    integers: NDArray[np.integer]
    scale: NDArray[np.float32]  # one number, or one number per entry of `axis`
    zero_point: NDArray[np.integer]  # as many numbers as `scale`
    axis: int

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Return the integers minus their zero points."""
        numbers: NDArray[np.int64] = self.integers.astype(np.int64) - self._along(self.zero_point)
        return numbers

    @property
    def floats(self) -> NDArray[np.float32]:
        """Return the dequantized numbers as float32, with the same rounding as in ONNX Runtime."""
        floats: NDArray[np.float32] = self.numbers.astype(np.float32) * self._along(self.scale)
        return floats

    def _along(self, entries: NDArray[Any]) -> NDArray[Any]:
        along = [1] * self.integers.ndim
        if self.scale.size > 1:
            along[self.axis] = -1
        return entries.reshape(along)


def dequantized(node: ir.Node) -> QuantizedConstant | None:
    """Return the quantized constant that a DequantizeLinear reads.

    Return None if an input is computed, if the type is neither 8-bit nor int32, or if scales are
    per block.
    """
    tensors = [input_of(node, index) for index in range(3)]
    integers, scale, zero_point = map(_constant, tensors)
    if integers is None or scale is None or (zero_point is None and tensors[2] is not None):
        return None
    if integers.dtype not in _INTEGERS.values() or scale.dtype != np.float32:
        return None
    if zero_point is None:
        zero_point = np.zeros(scale.shape, integers.dtype)
    attribute = node.attributes.get("axis")
    axis = 1 if attribute is None else attribute.as_int()
    if scale.size > 1:
        axis += integers.ndim if axis < 0 else 0
        fits = 0 <= axis < integers.ndim and scale.shape == (integers.shape[axis],)
        if not fits:
            return None
    if zero_point.size != scale.size:
        return None
    zeros: NDArray[np.integer] = zero_point.reshape(-1).astype(np.int64)
    return QuantizedConstant(
        integers.astype(integers.dtype),
        scale.reshape(-1).astype(np.float32),
        zeros,
        axis if scale.size > 1 else 0,
    )


def constant_of(value: ir.Value) -> NDArray[np.generic] | None:
    """Return the numbers of a constant, dequantized if necessary. Return None if the value is
    computed."""
    if value.const_value is not None:
        return _constant(value)
    constant = dequantized_constant(value)
    return None if constant is None else constant.floats


def dequantized_constant(value: ir.Value) -> QuantizedConstant | None:
    """If a DequantizeLinear of a constant computes `value`, return this constant. Otherwise, return
    None."""
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain != "":
        return None
    return dequantized(node)


_QUANTIZED = re.compile("^QLinear|QuantizeLinear$|Integer$")


def on_integers(nodes: Iterable[ir.Node]) -> list[str]:
    """Return the operators of the nodes that quantize values or compute on integers.

    The result is empty for a float model, and for a model in which only weights are quantized.
    """
    found = {node.op_type for node in nodes if _QUANTIZED.search(node.op_type)}
    return sorted(found)
