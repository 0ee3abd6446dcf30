"""Removes a network's last softmax, because the kernel that ranks the scores can compute it, too.

    logits ─ Softmax ─ scores ─ top_k   becomes   logits ─ top_k

This saves a launch. The scores and their ranking stay the same.
"""

from collections import Counter
from dataclasses import replace
from math import prod

from models.graph import Dequantize, Graph, Softmax, last_nodes


def without_last_dequantize(graph: Graph) -> Graph:
    """Return the graph without its last node if this node dequantizes the scores, and otherwise the
    graph itself.

    The ranking kernel reads quantized scores directly.
    """
    last = graph.nodes[-1]
    read = [name for node in graph.nodes for name in node.operands()]
    if not isinstance(last, Dequantize) or graph.outputs[0] != last.output or last.output in read:
        return graph
    if graph.values[last.x].inside is not None:
        return graph
    values = {name: value for name, value in graph.values.items() if name != last.output}
    return replace(
        graph, outputs=(last.x, *graph.outputs[1:]), values=values, nodes=graph.nodes[:-1]
    )


def without_last_softmax(graph: Graph) -> Graph | None:
    """Return the graph without the softmax at its end, or None if it does not end with one.

    The softmax must be over all classes, and only Reshapes may follow it. No other node may read
    their results.
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
