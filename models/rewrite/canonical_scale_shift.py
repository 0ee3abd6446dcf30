"""Replaces Add, Sub, Mul or Div with a constant by a ScaleShift, which computes scale · x + shift.

    x + w = 1·x + w     x - w = 1·x - w     w - x = -1·x + w     x·w = w·x + 0     x/w = (1/w)·x + 0

The constant w has one number, or one number per channel. The result must have x's shape. The rule
does not apply to w/x, or to x/w if w contains zero. Other rules can then fold a ScaleShift into a
convolution.
"""

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Node, Shape, Weight
from models.rewrite.folding import Float64, with_scale_shift
from models.rewrite.rule import GraphView, Outcome, Refusal


def canonical_scale_shift(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces `node` by a ScaleShift, if `node` is Add, Sub, Mul or Div with
    a constant."""
    if not isinstance(node, Binary):
        return None
    weight, weight_first = view.weight(node.b), False
    if weight is None:
        weight, weight_first = view.weight(node.a), True
    x = node.b if weight_first else node.a
    if weight is None or view.shape(x) != view.shape(node.output):
        return None
    w = _per_channel(weight, view.shape(x))
    if w is None:
        return None

    one, zero = np.ones_like(w), np.zeros_like(w)
    match node.op, weight_first:
        case BinaryOp.ADD, _:
            scale, shift = one, w
        case BinaryOp.SUB, False:
            scale, shift = one, -w
        case BinaryOp.SUB, True:
            scale, shift = -one, w
        case BinaryOp.MUL, _:
            scale, shift = w, zero
        case BinaryOp.DIV, False if np.all(w):
            scale, shift = 1 / w, zero
        case BinaryOp.DIV, False:
            return Refusal(f"{node.b} contains zero")
        case _:
            return None
    return with_scale_shift(view, node, x, scale, shift, node.activation)


def _per_channel(weight: Weight, shape: Shape) -> Float64 | None:
    """Return `weight` as one number per channel of a tensor with the shape of x, or None.

    The result is None if the weight varies along another axis, or has more axes than x.
    """
    if weight.ndim > len(shape) or not shape:
        return None
    aligned = weight.reshape((1,) * (len(shape) - weight.ndim) + weight.shape)
    if aligned.size != aligned.shape[0]:
        return None  # it varies along an axis other than the first
    return np.broadcast_to(aligned.reshape(-1), shape[0]).astype(np.float64)
