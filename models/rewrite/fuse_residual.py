"""Fuses an addition into the Conv that computes one of its operands. The Conv adds the other
operand as a residual.

    f(conv(x) + r) = conv(x) with residual r and activation f

In the order of nodes, the Conv moves to the position of the addition, after the node that computes
r. If two Convs compute the operands, the later Conv adds the residual.

The rule does not apply if the Conv already has an activation or a residual, if other nodes read its
result, or if the addition broadcasts.
"""

from dataclasses import replace

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import Precision
from models.graph import Binary, Conv, Node
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fuse_residual(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that fuses the addition `node` into the Conv that computes one of its
    operands."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.ADD:
        return None
    convs = [conv for conv in map(view.producer, (node.a, node.b)) if isinstance(conv, Conv)]
    if not convs or view.weight(node.a) is not None or view.weight(node.b) is not None:
        return None
    if view.shape(node.a) != view.shape(node.b):
        return Refusal(f"{node.a} and {node.b} differ in shape, so the sum broadcasts")
    obstacles = [_obstacle(view, conv, node) for conv in convs]
    able = [conv for conv, obstacle in zip(convs, obstacles, strict=True) if obstacle is None]
    if not able:
        return Refusal("; ".join(dict.fromkeys(filter(None, obstacles))))
    last = able[0]
    for conv in able[1:]:
        last = conv if view.precedes(last, conv) else last
    other = node.b if last.output == node.a else node.a
    fused = replace(last, output=node.output, residual=other, activation=node.activation)
    return Rewrite(nodes=(fused,))


def _obstacle(view: GraphView, conv: Conv, add: Node) -> str | None:
    if conv.problem.precision is Precision.INT8:
        return f"{conv.name} rounds its result to bytes"
    if conv.activation is not None:
        return f"{conv.name} has the activation {conv.activation}"
    if conv.residual is not None:
        return f"{conv.name} already adds {conv.residual}"
    return view.tie(conv.output, add)
