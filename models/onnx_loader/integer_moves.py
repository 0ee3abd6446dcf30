"""Moves dequantization behind operations that move elements, so that they move 8-bit integers.

    move(dequantize(q))  →  dequantize(move(q))
    quantize(max(x))     →  max(quantize(x))     over the windows of a MaxPool

With the first rule, the convolution after the move reads integers. With the second rule, the
convolution before the MaxPool writes integers. The results stay the same, because quantization
keeps the order of numbers.

A Pad is first moved behind the dequantization. If it pads with zeros, it then becomes part of the
convolution that follows it:

    dequantize(pad(q, code))           →  pad(dequantize(q), number)     code represents number
    dequantize(quantize(pad(x, 0)))    →  pad(dequantize(quantize(x)), 0)

The first rule moves all other Pads back, and they then pad integers. The rules do not apply if
operands are quantized differently or per channel, if no integer represents the padding exactly, or
if other nodes read the values in between.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules

from models.onnx_loader.constants import add_constant
from models.onnx_loader.integers import constant_of

# These operators move their first input, and Concat moves all its inputs; MaxPool selects elements.
_MOVES = frozenset(
    {"Concat", "Flatten", "MaxPool", "Pad", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


_End = tuple[ir.Node, ir.Value | None]
"""A QuantizeLinear or DequantizeLinear node, and its value of integers."""

_Meaning = tuple[ir.DataType, float, int]
"""The type, scale and zero point of integers."""


def move_integers(model: ir.Model) -> None:
    """Apply the rules of this module to `model`. Constants must already be folded."""
    for node in reversed(_moves(model)):
        if node.op_type == "Pad":
            _pad_later(node, model.graph)
    RewritePass([rules.normalize_pad_format_conv_rule, rules.fuse_pad_into_conv_rule])(model)
    moves = _moves(model)
    for node in moves:
        _dequantize_later(node, model.graph)
    for node in reversed(moves):
        if node.op_type == "MaxPool":
            _quantize_sooner(node, model.graph)
    passes.RemoveUnusedNodesPass()(model)


def _moves(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in model.graph
        if node.op_type in _MOVES
        and node.domain == ""
        and len(node.outputs) == 1
        and not node.outputs[0].is_graph_output()
    ]


def _pad_later(pad: ir.Node, graph: ir.Graph) -> None:
    readers = [reader for reader, _ in pad.outputs[0].uses()]
    kinds, x = {reader.op_type for reader in readers}, pad.inputs[0]
    ends: list[_End]
    if x is None:
        return
    if kinds == {"QuantizeLinear"} and _padded_with(pad) == 0:
        ends = [(reader, reader.outputs[0]) for reader in readers]
        written = [reader.outputs[0] for reader in readers]
        back = [reader for integers in written for reader, _ in integers.uses()]
        if any(integers.is_graph_output() for integers in written):
            return
        if any(each.op_type != "DequantizeLinear" for each in back):
            return
        ends += [(each, each.inputs[0]) for each in back]
    elif kinds == {"DequantizeLinear"}:
        back = readers
        ends = [(reader, x) for reader in readers]
    else:
        return
    meaning = _common(ends)
    if meaning is None or any(each.outputs[0].is_graph_output() for each in back):
        return
    number = _padded_with(pad)
    if number is not None and kinds == {"DequantizeLinear"}:
        number = float(np.float32(meaning[1]) * np.float32(number - meaning[2]))
    elif number is None and _mode(pad) == "constant":
        return
    for reader in readers:
        reader.replace_input_with(0, x)
        if reader.op_type == "QuantizeLinear":
            reader.outputs[0].shape = x.shape
    for each in back:
        numbers = each.outputs[0]
        later = ir.Node("", "Pad", [numbers, pad.inputs[1]], list(pad.attributes.values()))
        if len(pad.inputs) > 3:
            later.resize_inputs(4)
            later.replace_input_with(3, pad.inputs[3])
        if number:
            later.resize_inputs(max(3, len(later.inputs)))
            constant = add_constant(graph, f"{numbers.name}/number", np.array(number, np.float32))
            later.replace_input_with(2, constant)
        ir.convenience.replace_all_uses_with(numbers, later.outputs[0])
        later.replace_input_with(0, numbers)
        later.outputs[0].type = numbers.type
        later.outputs[0].shape, numbers.shape = numbers.shape, x.shape
        later.outputs[0].name = f"{numbers.name}/padded"
        graph.insert_after(each, later)
    graph.remove(pad, safe=True)


def _padded_with(pad: ir.Node) -> float | None:
    """Return the number with which a Pad pads. Return None if it is computed, or if the Pad repeats
    pixels."""
    if _mode(pad) != "constant":
        return None
    given = pad.inputs[2] if len(pad.inputs) > 2 else None
    number = np.zeros(1) if given is None else constant_of(given)
    return None if number is None else float(number.item())


def _mode(pad: ir.Node) -> str:
    mode = pad.attributes.get("mode")
    return "constant" if mode is None else mode.as_string()


def _code(number: float | None, meaning: _Meaning) -> int | None:
    """Return the integer that represents a number exactly, or None if there is no such integer."""
    kind, scale, zero = meaning
    if number is None:
        return None
    steps = np.rint(np.float32(number) / np.float32(scale))
    bounds = np.iinfo(kind.numpy())
    fits = bounds.min <= steps + zero <= bounds.max and np.float32(scale) * steps == number
    return int(steps) + zero if fits else None


def _dequantize_later(move: ir.Node, graph: ir.Graph) -> None:
    (moved,) = move.outputs
    operands = move.inputs if move.op_type == "Concat" else move.inputs[:1]
    sources = [each.producer() for each in operands if each is not None]
    made = [each for each in sources if each is not None and each.op_type == "DequantizeLinear"]
    meaning = _common([(each, each.inputs[0]) for each in made])
    if meaning is None or len(made) != len(operands):
        return
    kind = meaning[0]
    if move.op_type == "Pad":
        code = _code(_padded_with(move), meaning)
        if code is None:
            return
        move.resize_inputs(max(3, len(move.inputs)))
        constant = add_constant(graph, f"{moved.name}/code", np.array(code, kind.numpy()))
        move.replace_input_with(2, constant)
    after = ir.node("DequantizeLinear", [moved, *made[0].inputs[1:]])
    after.outputs[0].type, after.outputs[0].shape = moved.type, moved.shape
    ir.convenience.replace_all_uses_with(moved, after.outputs[0])
    after.replace_input_with(0, moved)
    graph.insert_after(move, after)
    for index, each in enumerate(made):
        move.replace_input_with(index, each.inputs[0])
    moved.type = ir.TensorType(kind)
    after.outputs[0].name, moved.name = moved.name, f"{moved.name}/bytes"


def _quantize_sooner(move: ir.Node, graph: ir.Graph) -> None:
    (most,), x = move.outputs, move.inputs[0]
    readers = [reader for reader, _ in most.uses()]
    if any(each.op_type != "QuantizeLinear" for each in readers):
        return
    meaning = _common([(each, each.outputs[0]) for each in readers])
    if meaning is None or x is None or len(x.uses()) > 1 or x.is_graph_output():
        return
    first, kind = readers[0], meaning[0]
    before = ir.node("QuantizeLinear", [x, *first.inputs[1:]])
    before.outputs[0].name, before.outputs[0].type = f"{most.name}/bytes", ir.TensorType(kind)
    before.outputs[0].shape = x.shape
    graph.insert_before(move, before)
    move.replace_input_with(0, before.outputs[0])
    most.type, most.name = ir.TensorType(kind), first.outputs[0].name
    for each in readers:
        ir.convenience.replace_all_uses_with(each.outputs[0], most, replace_graph_outputs=True)
    graph.remove(readers, safe=True)


def _common(ends: Sequence[_End]) -> _Meaning | None:
    """Return the type, scale and zero point that these 8-bit values share, or None if they
    differ."""
    found = {_meaning(node, integers) for node, integers in ends}
    return found.pop() if len(found) == 1 else None


def _meaning(node: ir.Node, integers: ir.Value | None) -> _Meaning | None:
    if integers is None or integers.dtype not in _EIGHT_BITS or integers.const_value is not None:
        return None
    scale, *zeros = (None if each is None else constant_of(each) for each in node.inputs[1:])
    zero = zeros[0] if zeros and node.inputs[2] is not None else np.zeros(1)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return integers.dtype, float(scale.item()), int(zero.item())
