"""Fuses an activation into the node that computes its input.

    f(conv(x)) = conv(x) with activation f, and likewise Gemm, ScaleShift, Normalise, Add, ...

The rule does not apply if that node already has an activation, or if other nodes read its result.
"""

from dataclasses import replace

from models.graph import Activate, Binary, Conv, Gemm, Node, Normalise, ScaleShift
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fuse_activation(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that fuses the activation `node` into the node that computes its input, if
    possible."""
    if not isinstance(node, Activate):
        return None
    before = view.producer(node.x)
    if not isinstance(before, Conv | Gemm | ScaleShift | Normalise | Binary):
        return None
    if before.activation is not None:
        return Refusal(f"{before.name} already has the activation {before.activation}")
    if tie := view.tie(before.output, node):
        return Refusal(tie)
    return Rewrite(nodes=(replace(before, output=node.output, activation=node.activation),))
