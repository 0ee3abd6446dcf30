"""Lets an addition work on 8-bit integers if its operands and its result are quantized.

    quantize(f(dequantize(a) + dequantize(b)))  →  a + b, on bytes
    if a = conv(x) has no other reader          →  conv(x), rounded to a's scale, with residual b

The activation f may only clamp. If convolutions compute both operands, the later convolution adds
the result of the earlier one. The rule does not apply if the addition broadcasts, if an operand is
not quantized, or if another node reads the float sum.
"""

from dataclasses import replace

from kernels.operations.quantize import clamps
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import Precision
from models.graph import Binary, Conv, Node
from models.rewrite.integer_conv import behind, quantizes
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def integer_sum(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that adds the bytes of quantized tensors, if the Quantize `node` reads the
    sum of their dequantized numbers."""
    if not quantizes(node, view):
        return None
    add = view.producer(node.x)
    if not isinstance(add, Binary):
        return None
    if add.op is not BinaryOp.ADD:
        return Refusal(f"{add.name} computes {add.op.value} in float")
    if not clamps(add.activation):
        return Refusal(
            f"{add.name} has the activation {add.activation}, which does more than clamp"
        )
    if tie := view.tie(add.output, node):
        return Refusal(tie)
    operands = [
        None if view.weight(name) is not None else behind(view, name) for name in (add.a, add.b)
    ]
    a, b = operands
    if a is None or b is None:
        return Refusal(f"{add.b if a else add.a}, which {add.name} adds, is not quantized")
    if view.shape(a) != view.shape(b):
        return Refusal(f"{a} and {b} differ in shape, so the sum broadcasts")
    able = [
        conv
        for bytes_, floats in ((a, add.a), (b, add.b))
        if (conv := _takes_the_sum(view, bytes_, floats, add)) is not None
    ]
    if not able or a == b:
        return Rewrite(nodes=(replace(add, output=node.output, a=a, b=b),))
    last = able[0]
    for conv in able[1:]:
        last = conv if view.precedes(last, conv) else last
    fused = replace(
        last,
        output=node.output,
        residual=b if last.output == a else a,
        activation=add.activation,
        rounded=view.value(last.output).stored,
    )
    return Rewrite(nodes=(fused,))


def _takes_the_sum(view: GraphView, bytes_: str, floats: str, add: Binary) -> Conv | None:
    """Return the convolution that computes the quantized value `bytes_`, if it can also do the
    addition `add` as a residual, or otherwise None."""
    conv, between = view.producer(bytes_), view.producer(floats)
    if not isinstance(conv, Conv) or conv.problem.precision is not Precision.INT8:
        return None
    if conv.residual is not None or conv.activation is not None or between is None:
        return None
    return None if view.tie(bytes_, between) or view.tie(floats, add) else conv
