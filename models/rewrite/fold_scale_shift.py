"""Folds a ScaleShift (a loaded BatchNormalization) into the Conv or Gemm before it.

    f(s·(W∗x + b) + t) = f(W'∗x + b'),   W' = s·W,  b' = s·b + t,   s and t one number per output

Weights are computed in float64 and stored in float32. The rule does not apply if the Conv or Gemm
has an activation or a residual, because the scale is applied after them. It also does not apply if
other nodes read the unscaled tensor, or if the Gemm's outputs are along another axis than the
scaled channels.
"""

from dataclasses import replace

from models.graph import Conv, Gemm, Node, ScaleShift
from models.rewrite.folding import along_first, bias64, weight64, with_weights
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fold_scale_shift(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that folds the ScaleShift `node` into the Conv or Gemm before it, if
    possible."""
    if not isinstance(node, ScaleShift):
        return None
    before = view.producer(node.x)
    if not isinstance(before, Conv | Gemm):
        return None
    if before.activation is not None:
        return Refusal(f"{before.name} has the activation {before.activation}")
    if isinstance(before, Conv) and before.residual is not None:
        return Refusal(f"{before.name} adds {before.residual} before the scaling")
    if isinstance(before, Gemm) and len(view.shape(node.x)) != 1:
        return Refusal(
            f"{before.name} has outputs along the last axis, but the scale is along the first"
        )
    if tie := view.tie(before.output, node):
        return Refusal(tie)

    s, t = weight64(view, node.scale), weight64(view, node.shift)
    weight = weight64(view, before.weight)
    folded, weights = with_weights(
        view, before, along_first(s, weight.ndim) * weight, s * bias64(view, before) + t
    )
    folded = replace(folded, output=node.output, activation=node.activation)
    return Rewrite(nodes=(folded,), weights=weights)
