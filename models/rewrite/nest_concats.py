"""Lets a Concat read the result of an earlier Concat that has the same first inputs.

    concat(x1, ..., xm, ..., xn) = concat(concat(x1, ..., xm), ..., xn)

In DenseNet, each layer concatenates the results of all earlier layers. With nested Concats, each of
these results is stored only once. Both Concats must concatenate channels.
"""

from dataclasses import replace

from models.graph import Concat, Node
from models.rewrite.rule import GraphView, Outcome, Rewrite


def nest_concats(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite in which the Concat `node` reads the result of an earlier Concat instead of
    the inputs of that Concat."""
    if not isinstance(node, Concat) or node.axis != 0:
        return None
    nested = node
    while (shorter := _longest_beginning(view, nested)) is not None:
        parts = (shorter.output, *nested.parts[len(shorter.parts) :])
        nested = replace(nested, parts=parts)
    return None if nested is node else Rewrite(nodes=(nested,))


def _longest_beginning(view: GraphView, node: Concat) -> Concat | None:
    """Find the earlier Concats whose inputs are the first inputs of `node`. Return the longest of
    them that is shorter than `node`, or None."""
    found: Concat | None = None
    for other in view.readers(node.parts[0]):
        if not isinstance(other, Concat) or other.output == node.output:
            continue
        size = len(other.parts)
        begins = size < len(node.parts) and other.parts == node.parts[:size]
        if begins and other.axis == node.axis and view.precedes(other, node):
            found = other if found is None or size > len(found.parts) else found
    return found
