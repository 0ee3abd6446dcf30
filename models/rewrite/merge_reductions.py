"""Merges two successive reductions into one reduction along the axes of both.

    mean_h(mean_w(x)) = mean_hw(x), and likewise sums, maxima, minima and L2 norms

A Reshape between the reductions may remove axes of size 1. The rule does not apply if other nodes
read the result of the first reduction.
"""

from dataclasses import replace

from models.graph import Node, Reduce, Reshape, Shape, Value
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def merge_reductions(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the Reduce `node` with the Reduce of the same kind before it."""
    if not isinstance(node, Reduce):
        return None
    before = view.producer(node.x)
    reader: Node = node
    axes = node.axes
    if isinstance(before, Reshape):
        shapes = view.shape(before.x), view.shape(node.x)
        if before.channels_last or _long(shapes[0]) != _long(shapes[1]):
            return None
        if tie := view.tie(before.output, node):
            return Refusal(tie)
        axes = tuple(axis for axis in axes if shapes[1][axis] > 1)
        axes = tuple(_place(shapes[0], _long(shapes[1][:axis])) for axis in axes)
        reader, before = before, view.producer(before.x)
    if not isinstance(before, Reduce) or before.kind is not node.kind:
        return None
    if tie := view.tie(before.output, reader):
        return Refusal(tie)
    axes = tuple(sorted({*before.axes, *axes}))
    kept = tuple(1 if i in axes else size for i, size in enumerate(view.shape(before.x)))
    merged = replace(node, x=before.x, axes=axes)
    if kept == view.shape(node.output):
        return Rewrite(nodes=(merged,))
    name = view.fresh(f"{node.output}.kept")
    merged = replace(merged, name=f"{node.name}.kept", output=name)
    shaped = Reshape(name=node.name, output=node.output, x=name)
    return Rewrite(nodes=(merged, shaped), values=(Value(name, kept),))


def _long(shape: Shape) -> Shape:
    return tuple(size for size in shape if size > 1)


def _place(shape: Shape, before: Shape) -> int:
    """Return the index of the axis of `shape` that follows the axes of the sizes `before`. Axes of
    size 1 are not counted."""
    return [axis for axis, size in enumerate(shape) if size > 1][len(before)]
