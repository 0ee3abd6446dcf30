"""Folds a ScaleShift into the Conv or Gemm that reads its result.

    W∗(s·x + t) + b = W'∗x + b',   W'[k,c] = W[k,c]·s[c],   b'[k] = b[k] + Σ_c Σ_taps W[k,c]·t[c]

Weights are computed in float64 and stored in float32. The rule does not apply if the ScaleShift has
an activation, if other nodes read its result, or if the Gemm's inputs are along another axis than
the scaled channels. If the Conv has padding, t must be zero, because the padding contains zeros
that the ScaleShift would not shift.
"""

from typing import Any

import numpy as np

from models.graph import Conv, Gemm, Node, ScaleShift
from models.rewrite.folding import Float64, bias64, weight64, with_weights
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fold_scale_shift_ahead(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that folds the ScaleShift before the Conv or Gemm `node` into `node`."""
    if not isinstance(node, Conv | Gemm):
        return None
    before = view.producer(node.x)
    if not isinstance(before, ScaleShift):
        return None
    if before.activation is not None:
        return Refusal(f"{before.name} has the activation {before.activation}")
    if tie := view.tie(before.output, node):
        return Refusal(tie)
    s, t = weight64(view, before.scale), weight64(view, before.shift)
    if isinstance(node, Gemm) and len(view.shape(node.x)) != 1:
        return Refusal(
            f"{node.name} has inputs along the last axis, but the scale is along the first"
        )
    if isinstance(node, Conv) and _pads(node) and np.any(t):
        return Refusal(f"{node.name} pads with zeros, which {before.name} does not shift")

    weight = weight64(view, node.weight)
    s, t = (_per_filter(vector, node, weight.shape) for vector in (s, t))
    taps = tuple(range(1, weight.ndim))
    folded, weights = with_weights(
        view, node, weight * s, bias64(view, node) + np.sum(weight * t, axis=taps)
    )
    return Rewrite(nodes=(folded.renamed({before.output: before.x}),), weights=weights)


def _pads(conv: Conv) -> bool:
    window = conv.problem.window
    return any(window.pads_begin + window.pads_end)


def _per_filter(vector: Float64, node: Conv | Gemm, shape: tuple[int, ...]) -> Any:
    """Repeat one number per input channel for each filter, in the shape K×(C/groups)×1×1."""
    groups = node.problem.groups if isinstance(node, Conv) else 1
    per_group = np.repeat(vector.reshape(groups, -1), shape[0] // groups, axis=0)
    return per_group.reshape(*per_group.shape, *(1,) * (len(shape) - 2))
