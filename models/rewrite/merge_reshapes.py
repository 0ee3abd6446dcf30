"""Two Reshapes in a row become one: reshape(reshape(x, a), b) = reshape(x, b).

Squeeze, Unsqueeze and Flatten are Reshapes too, and exporters chain them. Where other nodes
read the first it stays for them.
"""

from dataclasses import replace

from models.graph import Node, Reshape
from models.rewrite.rule import GraphView, Outcome, Rewrite


def merge_reshapes(view: GraphView, node: Node) -> Outcome:
    """Apply the rule to a node."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    first = view.producer(node.x)
    if not isinstance(first, Reshape) or first.channels_last:
        return None
    return Rewrite(nodes=(replace(node, x=first.x),))
