"""Adds pixels before a gather restores their order, instead of afterwards.

    x + P⁻¹(y) = P⁻¹(P(x) + y)      P reorders pixels, P⁻¹ restores their order

The rule applies only if P(x) is already computed in the graph. The Conv that computes y can then
add P(x) as a residual. The rule does not apply if other nodes read P⁻¹(y).
"""

from collections.abc import Iterator
from dataclasses import replace

from kernels.problems.binary_operation import BinaryOp
from models.graph import Binary, Node, Resample, Reshape, Value
from models.rewrite.gather_pixels import Moved, gathered, moved_pixels
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def sum_of_gathered(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that adds a tensor before a gather restores the order of pixels. `node` adds
    the tensor after the gather."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.ADD:
        return None
    if view.weight(node.a) is not None or view.weight(node.b) is not None:
        return None
    for x, back in ((node.a, node.b), (node.b, node.a)):
        moved = _brought_back(view, back) if view.shape(x) == view.shape(back) else None
        there = None if moved is None else _moved_there(view, node, x, moved)
        if moved is None or there is None:
            continue
        if tie := view.tie(back, node):
            return Refusal(tie)
        return _summed(view, node, there, moved)
    return None


def _brought_back(view: GraphView, name: str) -> Moved | None:
    moved = moved_pixels(view, name)
    return None if moved is None or moved.stays else moved


def _moved_there(view: GraphView, node: Node, x: str, moved: Moved) -> str | None:
    """Return the name of a tensor that has the pixels of x in another order, and from which `moved`
    restores the original order. Return None if no node before `node` computes such a tensor."""
    for name in _gathers(view, x):
        other, writer = moved_pixels(view, name), view.producer(name)
        is_ahead = writer is not None and view.precedes(writer, node)
        if is_ahead and other is not None and other.x == x and moved.undoes(other):
            return name
    return None


def _gathers(view: GraphView, name: str) -> Iterator[str]:
    """Yield the values that are computed from a value only by Reshapes and Resamples. The results
    of later nodes come before the results of the nodes that they read."""
    for reader in view.readers(name):
        if isinstance(reader, Resample | Reshape):
            yield from _gathers(view, reader.output)
            yield reader.output


def _summed(view: GraphView, node: Binary, there: str, moved: Moved) -> Rewrite:
    shape = view.shape(moved.x)
    aligned = Value(view.fresh(f"{node.output}.aligned"), shape)
    total = Value(view.fresh(f"{node.output}.ahead"), shape)
    back = gathered(view, total, moved.places, node.output)
    return replace(
        back,
        nodes=(
            Reshape(name=aligned.name, output=aligned.name, x=there),
            replace(node, a=aligned.name, b=moved.x, output=total.name),
            *back.nodes,
        ),
        values=(aligned, total, *back.values),
    )
