"""Removes an Expand before an operation that broadcasts its operands anyway.

    expand(x) op y = x op y   if y has the output's shape, or if x and y broadcast to it

If other nodes read the expanded tensor, the Expand is kept for them.
"""

import numpy as np

from models.graph import Binary, Expand, Node
from models.rewrite.rule import GraphView, Outcome, Rewrite


def drop_expand(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite in which `node` reads the input of an Expand instead of the Expand's result,
    if `node` broadcasts its operands anyway."""
    if not isinstance(node, Binary):
        return None
    for expanded, other in ((node.a, node.b), (node.b, node.a)):
        expand = view.producer(expanded)
        if not isinstance(expand, Expand) or expanded == other:
            continue
        shapes = view.shape(expand.x), view.shape(other)
        if np.broadcast_shapes(*shapes) == view.shape(node.output):
            return Rewrite(nodes=(node.renamed({expanded: expand.x}),))
    return None
