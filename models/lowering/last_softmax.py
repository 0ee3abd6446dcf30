"""Leaves a network's last softmax to the kernel that ranks, which saves its launch.

    logits ─ Softmax ─ scores ─ top_k   becomes   logits ─ top_k

Scores and ranking stay those of the softmax.
"""

from collections import Counter
from dataclasses import replace
from math import prod

from models.graph import Graph, Softmax, last_nodes


def without_last_softmax(graph: Graph) -> Graph | None:
    """Return the graph up to the logits if the output is their softmax over all classes, else None.

    Reshapes may follow the softmax. None also where anything else reads it.
    """
    last = last_nodes(graph)
    softmax = last[-1] if last else None
    if not isinstance(softmax, Softmax) or softmax.log:
        return None
    shape, logits = graph.shape(softmax.x), graph.values[softmax.x]
    readers = Counter(name for node in graph.nodes for name in node.operands())
    readers.update(graph.outputs)
    if shape[softmax.axis] != prod(shape) or any(readers[node.output] > 1 for node in last):
        return None
    names = {softmax.output: softmax.x}
    viewed = {node.output for node in last[:-1]}
    values = {
        name: replace(value, stored=logits.stored) if name in viewed else value
        for name, value in graph.values.items()
        if name != softmax.output
    }
    return replace(
        graph,
        outputs=tuple(names.get(name, name) for name in graph.outputs),
        values=values,
        nodes=tuple(node.renamed(names) for node in graph.nodes if node is not softmax),
    )
