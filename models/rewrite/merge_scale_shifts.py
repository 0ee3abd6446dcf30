"""Merges two successive ScaleShifts: s2·(s1·x + t1) + t2 = (s2·s1)·x + (s2·t1 + t2).

Weights are computed in float64 and stored in float32. The rule does not apply if the first
ScaleShift has an activation, or if other nodes read its result.
"""

from models.graph import Node, ScaleShift
from models.rewrite.folding import weight64, with_scale_shift
from models.rewrite.rule import GraphView, Outcome, Refusal


def merge_scale_shifts(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the ScaleShift `node` with the ScaleShift before it."""
    if not isinstance(node, ScaleShift):
        return None
    first = view.producer(node.x)
    if not isinstance(first, ScaleShift):
        return None
    if first.activation is not None:
        return Refusal(f"{first.name} has the activation {first.activation}")
    if tie := view.tie(first.output, node):
        return Refusal(tie)
    s1, t1 = weight64(view, first.scale), weight64(view, first.shift)
    s2, t2 = weight64(view, node.scale), weight64(view, node.shift)
    return with_scale_shift(view, node, first.x, s2 * s1, s2 * t1 + t2, node.activation)
