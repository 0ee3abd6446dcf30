"""Moves a gather of pixels before a normalisation if a later sum needs the gathered pixels, too.

    P(norm(x)) = norm(P(x))     norm normalises each pixel separately

A Swin block computes x + P⁻¹(f(P(norm(x)))). With this rule, P(x) exists, and the rule
`sum_of_gathered` can add it before P⁻¹. The rule is never refused. It does not apply if other nodes
read the normalised value.
"""

from dataclasses import replace

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Node, Normalise, Resample, Reshape, Value
from models.rewrite.gather_pixels import Moved, gathered, moved_pixels, source_of_pixels
from models.rewrite.rule import GraphView, Outcome


def gather_ahead(view: GraphView, node: Node) -> Outcome:
    """Apply the rule at the last node of the gather."""
    if not isinstance(node, Resample | Reshape):
        return None
    source = source_of_pixels(view, node.output)
    norm = None if source is None else view.producer(source)
    if not isinstance(norm, Normalise) or not is_of_pixels(view, norm):
        return None
    moved = moved_pixels(view, node.output)
    if moved is None or moved.stays:
        return None
    first, shape = view.readers(norm.output)[0], view.shape(node.output)
    if view.tie(norm.output, first) is not None or len(shape) != len(view.shape(norm.x)):
        return None
    if not any(_adds_what_returns(view, reader, norm.x, moved) for reader in view.readers(norm.x)):
        return None
    x = Value(view.fresh(f"{node.output}.ahead"), shape)
    ahead = gathered(view, view.value(norm.x), moved.places, x.name)
    return replace(
        ahead,
        nodes=(*ahead.nodes, replace(norm, x=x.name, output=node.output)),
        values=(*ahead.values, x),
    )


def is_of_pixels(view: GraphView, norm: Normalise) -> bool:
    """Return whether a Normalise treats each pixel separately, and all pixels in the same way."""
    shapes = [view.shape(name) for name in (norm.scale, norm.shift)]
    rank = len(view.shape(norm.x))
    alike = all(set(shape[max(0, len(shape) - rank + 1) :]) <= {1} for shape in shapes)
    return norm.axes == (0,) and norm.groups == 1 and alike


def _adds_what_returns(view: GraphView, node: Node, x: str, moved: Moved) -> bool:
    """Return whether a node adds pixels to x that were moved and then moved back to their
    positions."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.ADD or x not in (node.a, node.b):
        return False
    other = node.b if node.a == x else node.a
    if view.weight(other) is not None or view.shape(other) != view.shape(x):
        return False
    back = moved_pixels(view, other)
    return back is not None and back.undoes(moved)
