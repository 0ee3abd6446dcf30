"""Folds a scale and shift into the normalisation before them, which has a scale g and a shift b.

    (n·g + b)·s + t = n·(g·s) + (b·s + t),   s and t per channel, or constants that broadcast

The rule applies to a ScaleShift, and to an Add, Sub, Mul or Div with a constant. Weights are
computed in float64 and stored in float32. The rule does not apply if the normalisation has an
activation, because the scale s comes after the activation. It also does not apply if other nodes
read the normalised tensor.
"""

from dataclasses import replace

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Node, Normalise, ScaleShift, Shape
from models.rewrite.folding import Float64, along_first, weight64
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fold_into_normalise(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that folds the scale and shift of `node` into the normalisation before
    it."""
    if not isinstance(node, ScaleShift | Binary):
        return None
    found = _found(view, node)
    if found is None:
        return None
    x, s, t = found
    before = view.producer(x)
    if not isinstance(before, Normalise) or view.shape(x) != view.shape(node.output):
        return None
    if before.activation is not None:
        return Refusal(f"{before.name} has the activation {before.activation}")
    scale, shift = weight64(view, before.scale), weight64(view, before.shift)
    folded = scale * s, shift * s + t
    if any(_axes(weight.shape) > 1 for weight in folded):
        return None  # one number per element would be read again for every image
    if tie := view.tie(before.output, node):
        return Refusal(tie)
    names = [view.fresh(f"{node.output}.{role}") for role in ("scale", "shift")]
    joined = replace(
        before, output=node.output, scale=names[0], shift=names[1], activation=node.activation
    )
    weights = {name: weight.astype(np.float32) for name, weight in zip(names, folded, strict=True)}
    return Rewrite(nodes=(joined,), weights=weights)


def _found(view: GraphView, node: ScaleShift | Binary) -> tuple[str, Float64, Float64] | None:
    """Return (x, s, t) if the node computes x·s + t, possibly followed by an activation, or
    otherwise None."""
    if isinstance(node, ScaleShift):
        axes = len(view.shape(node.x))
        s, t = (along_first(weight64(view, name), axes) for name in (node.scale, node.shift))
        return node.x, s, t
    x, constant = node.a, node.b
    if view.weight(constant) is None and node.op in (BinaryOp.ADD, BinaryOp.MUL):
        x, constant = node.b, node.a
    if view.weight(constant) is None:
        return None
    w = weight64(view, constant)
    one, zero = np.ones(()), np.zeros(())
    match node.op:
        case BinaryOp.ADD:
            return x, one, w
        case BinaryOp.SUB:
            return x, one, -w
        case BinaryOp.MUL:
            return x, w, zero
        case BinaryOp.DIV if np.all(w):
            return x, 1 / w, zero
    return None


def _axes(shape: Shape) -> int:
    return sum(size > 1 for size in shape)
