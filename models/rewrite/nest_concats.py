"""Replaces the first parts of a Concat by the value of another Concat of the same parts.

    concat(x1, ..., xm, ..., xn) = concat(concat(x1, ..., xm), ..., xn)

In DenseNet, each layer concatenates all earlier layers. With nested Concats, each earlier layer is
stored only once. The other Concat must come earlier and also concatenate channels.
"""

from dataclasses import replace

from models.graph import Concat, Node
from models.rewrite.rule import GraphView, Outcome, Rewrite


def nest_concats(view: GraphView, node: Node) -> Outcome:
    """Apply the rule at the longer Concat."""
    if not isinstance(node, Concat) or node.axis != 0:
        return None
    nested = node
    while (shorter := _longest_beginning(view, nested)) is not None:
        parts = (shorter.output, *nested.parts[len(shorter.parts) :])
        nested = replace(nested, parts=parts)
    return None if nested is node else Rewrite(nodes=(nested,))


def _longest_beginning(view: GraphView, node: Concat) -> Concat | None:
    """Return the longest earlier Concat whose parts are the first parts of `node`, or None.

    The earlier Concat must have fewer parts than `node`.
    """
    found: Concat | None = None
    for other in view.readers(node.parts[0]):
        if not isinstance(other, Concat) or other.output == node.output:
            continue
        size = len(other.parts)
        begins = size < len(node.parts) and other.parts == node.parts[:size]
        if begins and other.axis == node.axis and view.precedes(other, node):
            found = other if found is None or size > len(found.parts) else found
    return found
