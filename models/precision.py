"""Applies a precision to a network. The precision sets how nodes multiply and how values are
stored.

In fp16, all values are stored as float16, except the results of the nodes in `kept_in_float`.
Identity nodes convert between the two types.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from kernels.problems.precision import FLOAT, HALF, Precision, Storage
from models.graph import (
    Activate,
    Attention,
    Binary,
    Constant,
    Conv,
    Dequantize,
    Gemm,
    Graph,
    Identity,
    Node,
    Normalise,
    Product,
    Quantize,
    Resample,
    Reshape,
    ScaleShift,
    Softmax,
    Value,
)

_LARGEST = float(np.finfo(np.float16).max)
_VANISHING = float(np.finfo(np.float16).smallest_subnormal) / 2
_IS_LAST = "scores are float32"


def at_precision(graph: Graph, precision: Precision) -> Graph:
    """Return the rewritten graph with every Conv, Attention, Product and value at `precision`.

    In fp16, the nodes in `kept_in_float` stay in float32.
    """
    if precision is Precision.FP32:
        return graph
    if precision.stored == FLOAT:
        return replace(graph, nodes=tuple(_at(node, precision) for node in graph.nodes))
    return _Halves(graph).graph()


def kept_in_float(graph: Graph, precision: Precision) -> Mapping[str, str]:
    """Return the nodes of a rewritten graph that stay in float32 at the precision fp16, each with
    the reason."""
    if precision.stored == FLOAT:
        return {}
    scores = _scores(graph)
    last = {node.name: _IS_LAST for node in graph.nodes if node.output in scores}
    return last | _between_bytes(graph) | beyond_half(graph)


def _at(node: Node, precision: Precision) -> Node:
    match node:
        case Conv():
            return replace(node, problem=replace(node.problem, precision=precision))
        case Attention() | Product():
            return replace(node, precision=precision)
        case _:
            return node


class _Halves:
    """Converts one graph to fp16. It collects the new nodes, and records which values exist in
    float16 and which in float32."""

    def __init__(self, graph: Graph) -> None:
        self._graph, between = graph, _between_bytes(graph)
        self._in_float = beyond_half(graph) | between
        floats = _scores(graph) | _inputs_to_quantize(graph)
        floats |= {
            name
            for node in graph.nodes
            if node.name in between
            for name in _within(graph, node.output)
        }
        self._values = {
            name: replace(value, stored=FLOAT if name in floats else HALF)
            if value.stored == FLOAT
            else value
            for name, value in graph.values.items()
        }
        # By the name of a value, the name of its float32 form, if that was computed.
        self._floats: dict[str, str] = {}
        self._unwritten: set[str] = set()
        self._nodes: list[Node] = []

    def graph(self) -> Graph:
        """Return the graph in fp16."""
        for node in self._graph.nodes:
            self._add(node)
        for name in self._graph.outputs:
            self._as_stored(name)
        return replace(self._graph, values=self._values, nodes=tuple(self._nodes))

    def _add(self, node: Node) -> None:
        if node.name in self._in_float:
            self._add_in_float(node)
            return
        for name in node.operands():
            self._as_stored(name)
        is_whole = isinstance(node, Conv) and node.problem.precision is Precision.INT8
        self._nodes.append(node if is_whole else _at(node, Precision.FP16))

    def _add_in_float(self, node: Node) -> None:
        values = [name for name in node.operands() if name in self._values]
        node = node.renamed({name: self._as_float(name) for name in values})
        value = self._values[node.output]
        if value.stored == HALF:
            written = Value(f"{value.name}/float32", value.shape)
            self._values[written.name] = written
            self._floats[value.name] = written.name
            self._unwritten.add(value.name)
            node = replace(node, output=written.name)
        self._nodes.append(node)
        if value.inside is not None:  # other nodes read it as a part of a larger value
            self._as_stored(value.name)

    def _as_float(self, name: str) -> str:
        """Return the name of a value in float32. If the value exists only in float16, add a
        conversion."""
        value = self._values[name]
        if value.stored != HALF:
            return name
        if name not in self._floats:
            self._floats[name] = f"{name}/float32"
            self._values[f"{name}/float32"] = Value(f"{name}/float32", value.shape)
            self._convert(name, f"{name}/float32", FLOAT)
        return self._floats[name]

    def _as_stored(self, name: str) -> None:
        """Add a conversion to float16 if the value exists only in float32 so far."""
        if name in self._unwritten:
            self._unwritten.remove(name)
            self._convert(self._floats[name], name, HALF)

    def _convert(self, x: str, y: str, to: Storage) -> None:
        self._nodes.append(Identity(name=f"{x} as {to}", output=y, x=x))


def beyond_half(graph: Graph) -> dict[str, str]:
    """Return the nodes whose weights do not fit float16, each with the reason.

    As float16, some of these weights would become infinite, and some constants would become 0.
    """
    reasons = {node.name: _obstacle(graph, node) for node in graph.nodes}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _obstacle(graph: Graph, node: Node) -> str | None:
    """Return the reason why a node's weights cannot be stored as float16, or None if they can.

    Biases, scales and shifts are always float32.
    """
    # This module imports the convolutions, which only a GPU needs.
    from kernels.convolution.tensor_winograd import LARGEST_WEIGHT  # noqa: PLC0415

    match node:
        case Conv() | Gemm():
            names = [node.weight]
        case Binary() | Constant() | Product():
            names = [name for name in node.operands() if name in graph.weights]
        case Attention() | ScaleShift() | Normalise() | Resample():
            return None
        case _:
            if any(name in graph.weights for name in node.operands()):
                raise TypeError(
                    f"no rule says which weights of {type(node).__name__} FP16 can hold; add one"
                    " to models/precision.py"
                )
            return None
    for name in names:
        sizes = np.abs(graph.weights[name])
        largest = sizes[sizes < np.inf].max(initial=0.0)
        if largest > _LARGEST:
            return f"it has a weight of {largest:.3g}, but the largest float16 is {_LARGEST:.0f}"
        if isinstance(node, Conv) and largest > LARGEST_WEIGHT:
            return (
                f"it has a weight of {largest:.3g}; with weights above {LARGEST_WEIGHT:.0f},"
                " Winograd's transform may exceed float16"
            )
        # Among the many weights of a sum, such a small weight has no effect.
        smallest = sizes[sizes > 0].min(initial=np.inf)
        if isinstance(node, Binary | Constant) and smallest <= _VANISHING:
            return f"it has a constant of {smallest:.3g}, which float16 rounds to 0"
    return None


def _scores(graph: Graph) -> set[str]:
    """Return the names of the last values of the network, including the scores, that stay in
    float32.

    The search goes backwards from the scores through Softmaxes, activations, Reshapes and
    Identities. It ends at a Gemm, a Dequantize, any other kind of node, or a value with several
    readers. Reshapes and Identities at the end of the search are left out of the result.
    """
    writers = {node.output: node for node in graph.nodes}
    readers = Counter(name for node in graph.nodes for name in node.operands())
    passed: list[Node] = []
    value = graph.outputs[0]
    while (node := writers.get(value)) is not None and graph.values[value].inside is None:
        if not isinstance(node, Gemm | Dequantize | Softmax | Activate | Reshape | Identity):
            break
        passed.append(node)
        if isinstance(node, Gemm | Dequantize) or readers[node.x] > 1:
            break
        value = node.x
    while passed and not isinstance(passed[-1], Gemm | Dequantize | Softmax | Activate):
        passed.pop()
    return {node.output for node in passed}


def _between_bytes(graph: Graph) -> dict[str, str]:
    """Return the nodes that stay in float32 because their results are quantized, each with this
    reason.

    In float16, such a result would be rounded twice: to float16, and to bytes. If all readers of a
    node's result stay in float32 for this reason, the node stays in float32, too. Matrix products
    are excluded, because they use tensor cores.
    """
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.operands():
            readers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for node in reversed(graph.nodes):
        is_product = isinstance(node, Attention | Conv | Gemm | Product)
        if is_product or graph.values[node.output].stored != FLOAT:
            continue
        after = [reader for name in _within(graph, node.output) for reader in readers.get(name, ())]
        if after and all(isinstance(each, Quantize) or each.name in found for each in after):
            found[node.name] = "its result is quantized"
    return found


def _within(graph: Graph, name: str) -> Iterator[str]:
    """Yield the name of a value, then the name of the larger value that it is stored in, if any,
    and so on."""
    yield name
    while (inside := graph.values[name].inside) is not None:
        name = inside.parent
        yield name


def _inputs_to_quantize(graph: Graph) -> set[str]:
    """Return the inputs of the network that only Quantize nodes read. They stay in float32, because
    in float16 they would be rounded twice."""
    others = {
        name for node in graph.nodes if not isinstance(node, Quantize) for name in node.operands()
    }
    return set(graph.inputs) - others
