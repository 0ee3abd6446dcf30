"""A network at a precision: what is multiplied how, and what each value is stored in."""

from collections import Counter
from dataclasses import replace

import numpy as np

from kernels.problems.precision import FLOAT, HALF, Precision
from models.errors import UnsupportedModelError
from models.graph import Binary, Conv, Gemm, Graph, Node


def at_precision(graph: Graph, precision: Precision) -> Graph:
    """The rewritten graph with every Conv at `precision`, and values stored as it stores them.

    In fp16 the last fully connected layer writes float32, and so does what follows it: operations
    on that one value. Raises UnsupportedModelError where a weight is too large for float16, and
    names its layer.
    """
    if precision is Precision.FP32:
        return graph
    stored = precision.stored
    floats = _after_last_linear(graph)
    at = replace(
        graph,
        values={
            name: replace(value, stored=FLOAT if name in floats else stored)
            for name, value in graph.values.items()
        },
        nodes=tuple(_at(node, precision) for node in graph.nodes),
    )
    _check_weights(at)
    return at


def _at(node: Node, precision: Precision) -> Node:
    if not isinstance(node, Conv):
        return node
    return replace(node, problem=replace(node.problem, precision=precision))


def _check_weights(graph: Graph) -> None:
    largest = float(np.finfo(np.float16).max)
    for node in graph.nodes:
        for name in _half_weights(graph, node):
            weight = float(np.abs(graph.weights[name]).max())
            if largest < weight < np.inf:
                raise UnsupportedModelError(
                    f"{node.name} has a weight of {weight:.3g}, and float16 ends at {largest:.0f}; "
                    "serve the model at tf32 or 3xtf32"
                )


def _half_weights(graph: Graph, node: Node) -> list[str]:
    """The weights that lie in memory as half: those that are multiplied by, or added to, halves."""
    match node:
        case Conv(x=x, weight=weight) | Gemm(x=x, weight=weight):
            return [weight] if graph.values[x].stored == HALF else []
        case Binary() if graph.values[node.output].stored == HALF:
            return [name for name in (node.a, node.b) if name in graph.weights]
        case _:
            return []


def _after_last_linear(graph: Graph) -> set[str]:
    """The values from the last Gemm on: it, and what may follow it, write float32 from either."""
    writers = {node.output: node for node in graph.nodes}
    readers = Counter(name for node in graph.nodes for name in node.operands())
    found: list[str] = []
    (value,) = graph.outputs
    while (node := writers.get(value)) is not None and graph.values[value].inside is None:
        found.append(value)
        if isinstance(node, Gemm):
            return set(found)
        read = [name for name in node.operands() if name in graph.values]
        if isinstance(node, Conv) or len(read) != 1 or readers[read[0]] > 1:
            return set()
        (value,) = read
    return set()
