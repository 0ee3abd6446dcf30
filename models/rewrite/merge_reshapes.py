"""Merges two successive Reshapes: reshape(reshape(x, a), b) = reshape(x, b).

Squeeze, Unsqueeze and Flatten are loaded as Reshapes, and exporters often write several of them in
sequence. If other nodes read the first Reshape, it is kept for them.
"""

from dataclasses import replace

from models.graph import Node, Reshape
from models.rewrite.rule import GraphView, Outcome, Rewrite


def merge_reshapes(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the Reshape `node` with the Reshape before it."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    first = view.producer(node.x)
    if not isinstance(first, Reshape) or first.channels_last:
        return None
    return Rewrite(nodes=(replace(node, x=first.x),))
