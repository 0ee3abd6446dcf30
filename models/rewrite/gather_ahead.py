"""Moves a gather P, which reorders pixels, before a normalisation of each pixel.

    P(norm(x)) = norm(P(x))

In a Swin block, this helps another rule. The block computes x + P⁻¹(f(P(norm(x)))), where P⁻¹
restores the order of the pixels. After this rule, P(x) is computed, so the rule `sum_of_gathered`
can add it before P⁻¹. This rule applies only if such a sum follows and no other node reads norm(x).
"""

from dataclasses import replace

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Node, Normalise, Resample, Reshape, Value
from models.rewrite.gather_pixels import Moved, gathered, moved_pixels, source_of_pixels
from models.rewrite.rule import GraphView, Outcome


def gather_ahead(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that gathers pixels before their normalisation instead of afterwards, if a
    later addition can then use the gathered pixels. `node` is the last node of the gather."""
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
    """Return whether a Normalise normalises the channels of each pixel, with the same scale and
    shift for all pixels."""
    shapes = [view.shape(name) for name in (norm.scale, norm.shift)]
    rank = len(view.shape(norm.x))
    alike = all(set(shape[max(0, len(shape) - rank + 1) :]) <= {1} for shape in shapes)
    return norm.axes == (0,) and norm.groups == 1 and alike


def _adds_what_returns(view: GraphView, node: Node, x: str, moved: Moved) -> bool:
    """Return whether `node` adds x and a tensor whose pixels had been reordered by `moved` and are
    back in their original order."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.ADD or x not in (node.a, node.b):
        return False
    other = node.b if node.a == x else node.a
    if view.weight(other) is not None or view.shape(other) != view.shape(x):
        return False
    back = moved_pixels(view, other)
    return back is not None and back.undoes(moved)
