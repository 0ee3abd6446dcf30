"""Finds values inside a network that some clients need more than its scores, such as its embedding.

The embedding is what the last linear layer reads, found from the scores back:

    ... ─ pool ─ flatten ─ [embedding] ─ Gemm ─ softmax ─ scores          ResNet and most others
    ... ─ [positions of it] ─ Conv 1×1 ─ pool ─ softmax ─ scores          SqueezeNet
"""

from collections.abc import Iterator

from models.errors import UnsupportedModelError
from models.graph import (
    Activate,
    Binary,
    Conv,
    Dequantize,
    Gemm,
    GlobalPool,
    Graph,
    Identity,
    Node,
    Quantize,
    Reduce,
    Reshape,
    ScaleShift,
    Softmax,
    Transpose,
)
from models.onnx_loader import LoadedModel
from models.served import Absent, Inner

NONE = "none"

_LISTED = 8  # names in a message

_IN_BYTES = "it is computed in int8, and the values inside it are bytes"
_AS_IT_IS = "ONNX Runtime runs it as it is, and Convoy does not look inside"


def find_embedding(network: LoadedModel, named: str | None = None) -> Inner | Absent:
    """Return the value that the last linear layer reads, or that of the node called `named`.

    NONE names none.

    Raises UnsupportedModelError where no node has that name.
    """
    graph = network.graph
    if named == NONE:
        return Absent("its model.toml says so")
    if reason := why_shut(network):
        if named is not None:
            raise UnsupportedModelError(
                f"embedding = {named!r}: {network.name} can have no embedding, because {reason}"
            )
        return Absent(reason)
    if named is not None:
        found = in_onnx(network, _named(graph, named))
        if isinstance(found, Absent):
            raise UnsupportedModelError(f"embedding = {named!r}: {found.reason}")
        return found
    last = last_linear(graph)
    if last is None:
        return Absent(
            "no linear layer was found from its scores back; name the node whose output is the"
            ' embedding in model.toml, as embedding = "NAME"'
        )
    if origin(graph, last.x) in graph.inputs:
        return Absent("its only linear layer reads the image itself")
    return in_onnx(network, last.x)


def why_shut(network: LoadedModel) -> str:
    """Return why no value inside a network can be read; empty if some can."""
    if network.no_kernels:
        return _AS_IT_IS
    return _IN_BYTES if network.quantized else ""


def last_linear(graph: Graph) -> Gemm | Conv | None:
    """Return the linear layer that computes the scores: a Gemm, or a 1×1 Conv."""
    for node in from_scores(graph):
        if isinstance(node, Gemm):
            return node
        if isinstance(node, Conv):
            return node if is_of_one_position(node) else None
    return None


def is_of_one_position(node: Conv) -> bool:
    """Return whether a Conv is a linear layer applied at each position."""
    problem = node.problem
    return problem.groups == 1 and problem.window.kernel_volume == 1


def from_scores(graph: Graph) -> Iterator[Node]:
    """Yield the nodes from the scores back, while each computes its output from a single value."""
    writers = {node.output: node for node in graph.nodes}
    value: str | None = graph.outputs[0]
    while value is not None and (node := writers.get(value)) is not None:
        yield node
        value = _only_value(graph, node)


def _only_value(graph: Graph, node: Node) -> str | None:
    match node:
        case Activate() | Dequantize() | GlobalPool() | Identity() | Quantize() | Reduce():
            return node.x
        case Gemm() | Reshape() | ScaleShift() | Softmax() | Transpose():
            return node.x
        case Conv():
            return node.x if node.residual is None else None
        case Binary():
            values = [name for name in (node.a, node.b) if name not in graph.weights]
            return values[0] if len(values) == 1 else None
        case _:
            return None


def origin(graph: Graph, name: str) -> str:
    """Return the first value that has the same elements as `name` in the same order."""
    writers = {node.output: node for node in graph.nodes}
    while isinstance(node := writers.get(name), Reshape | Identity) and node.x in graph.values:
        name = node.x
    return name


def _named(graph: Graph, named: str) -> str:
    if named in graph.values and named not in graph.inputs:
        return named
    for node in graph.nodes:
        if node.name == named:
            return node.output
    last = [node.name for node in graph.nodes[-_LISTED:]]
    raise UnsupportedModelError(
        f"embedding = {named!r}: {graph.name} has no node of that name; its last ones are"
        f" {', '.join(last)}"
    )


def in_onnx(network: LoadedModel, name: str) -> Inner | Absent:
    """Return the value as ONNX has it: the one called `name`, or one that differs only in shape."""
    graph = network.graph
    if origin(graph, name) == origin(graph, graph.outputs[0]):
        return Absent("its value is the scores")
    written = {output for node in network.proto.graph.node for output in node.output}
    writers = {node.output: node for node in graph.nodes}
    shape = graph.shape(name)
    while name not in written:
        if not isinstance(node := writers.get(name), Reshape | Identity):
            return Absent(f"{name} is between two parts of one node of the file")
        name = node.x
    return Inner(name, shape)
