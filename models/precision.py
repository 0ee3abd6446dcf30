"""A network at a precision: what is multiplied how, and what each value is stored in."""

from collections import Counter
from dataclasses import replace

import numpy as np

from kernels.problems.precision import FLOAT, HALF, Precision
from models.errors import UnsupportedModelError
from models.graph import Activate, Conv, Gemm, Graph, Identity, Node, Reshape, Softmax


def at_precision(graph: Graph, precision: Precision) -> Graph:
    """The rewritten graph with every Conv at `precision`, and values stored as it stores them.

    In fp16 the last fully connected layer writes float32, and what follows it stays float32. Raises
    UnsupportedModelError where a weight is too large for float16, and names its layer.
    """
    if precision is Precision.FP32:
        return graph
    _check_weights(graph, precision)
    floats = _after_last_linear(graph)
    stored = precision.stored
    return replace(
        graph,
        values={
            name: replace(value, stored=FLOAT if name in floats else stored)
            for name, value in graph.values.items()
        },
        nodes=tuple(_at(node, precision) for node in graph.nodes),
    )


def _at(node: Node, precision: Precision) -> Node:
    if not isinstance(node, Conv):
        return node
    return replace(node, problem=replace(node.problem, precision=precision))


def _check_weights(graph: Graph, precision: Precision) -> None:
    if precision.stored != HALF:
        return
    largest = float(np.finfo(np.float16).max)
    for node in graph.nodes:
        if isinstance(node, Conv | Gemm):
            weight = float(np.abs(graph.weights[node.weight]).max())
            if largest < weight < np.inf:
                raise UnsupportedModelError(
                    f"{node.name} has a weight of {weight:.3g}, and float16 ends at {largest:.0f}; "
                    "serve the model at tf32 or 3xtf32"
                )


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
        if not isinstance(node, Softmax | Activate | Reshape | Identity) or readers[node.x] > 1:
            return set()
        value = node.x
    return set()
