"""Removes nodes whose output equals their input (y = x).

These are Identity (including Dropout), Reshape to the same shape, Transpose to the same order, Pad
by nothing, Slice of everything, Pool over a 1×1 window, Concat of one input, ChannelShuffle of one
group or of groups of one, and Relu of a tensor that is never negative.

The nodes that read y read x instead. If y is an output of the network, its name must remain. In
that case, the node that computes x writes y instead. The rule does not apply if this is impossible,
because x is also an output, is stored in another tensor, or is not computed by a single node.
"""

from kernels.problems.activation import ActivationKind
from models.graph import (
    Activate,
    ChannelShuffle,
    Concat,
    Identity,
    Node,
    Pad,
    Pool,
    Reshape,
    Slice,
    Transpose,
)
from models.rewrite.nonnegative import is_nonnegative
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def drop_identity(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that removes `node`, if its output equals its input."""
    x = _same(view, node)
    y = node.output
    if x is None or view.weight(x) is not None or view.value(y).inside is not None:
        return None  # an Identity that writes a slice of another value is a necessary copy
    if y not in view.outputs:
        return Rewrite(rename={y: x})
    obstacle = _cannot_be_called(view, x)
    if obstacle is not None:
        return Refusal(f"{y} is an output of the network, and {x} {obstacle}")
    return Rewrite(rename={x: y})


def _same(view: GraphView, node: Node) -> str | None:
    """Return the input of `node`, or None if the output may differ from the input."""
    match node:
        case Identity(x=x):
            return x
        case Reshape(x=x, channels_last=False) if view.shape(x) == view.shape(node.output):
            return x
        case Transpose(x=x, axes=axes) if axes == tuple(range(len(axes))):
            return x
        case Pad(x=x, begin=begin, end=end) if not any(begin + end):
            return x
        case Slice(x=x) if view.shape(x) == view.shape(node.output):
            return x
        case Pool(x=x, problem=problem) if problem.window.is_pointwise:
            return x
        case Concat(parts=(x,)):
            return x
        case ChannelShuffle(x=x, groups=groups) if groups in (1, view.shape(x)[0]):
            return x
        case Activate(x=x, activation=f) if f.kind is ActivationKind.RELU:
            return x if is_nonnegative(view, x) else None
        case _:
            return None


def _cannot_be_called(view: GraphView, x: str) -> str | None:
    """Return the reason why the value x cannot take the name of a network output, or None if it
    can."""
    if x in view.inputs:
        return "is an input"
    if x in view.outputs:
        return "is an output as well"
    inside = view.value(x).inside
    if inside is not None:
        return f"is stored in {inside.parent}"
    return "is written in slices" if view.producer(x) is None else None
