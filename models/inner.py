"""Finds values inside a network that clients may request in addition to its scores.

One of these values is the embedding, the input of the last linear layer. The search for this layer
begins at the scores and goes backwards:

    ... ─ pool ─ flatten ─ [embedding] ─ Gemm ─ softmax ─ scores          ResNet and most others
    ... ─ [embedding per position] ─ Conv 1×1 ─ pool ─ softmax ─ scores   SqueezeNet
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

_LISTED = 8  # the most names in a message

_IN_BYTES = "the network is computed in int8, so that the values inside it are bytes"
_AS_IT_IS = "ONNX Runtime runs its original nodes, which Convoy does not read"


def find_embedding(network: LoadedModel, named: str | None = None) -> Inner | Absent:
    """Return the value that is the embedding, or the reason why there is none. It is the output of
    the node `named` or, if `named` is None, the input of the last linear layer.

    If `named` is the word "none", the network has no embedding. Raises UnsupportedModelError if no
    node has that name.
    """
    graph = network.graph
    if named == NONE:
        return Absent("its model.toml says so")
    if reason := why_shut(network):
        if named is not None:
            raise UnsupportedModelError(
                f"embedding = {named!r}: {network.name} cannot have an embedding, because {reason}"
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
            "no linear layer computes its scores; in model.toml, name the node whose output is the"
            ' embedding: embedding = "NAME"'
        )
    if origin(graph, last.x) in graph.inputs:
        return Absent("its only linear layer reads the image itself")
    return in_onnx(network, last.x)


def why_shut(network: LoadedModel) -> str:
    """Return the reason why no value inside the network can be read, or "" if values can be
    read."""
    if network.no_kernels:
        return _AS_IT_IS
    return _IN_BYTES if network.quantized else ""


def last_linear(graph: Graph) -> Gemm | Conv | None:
    """Return the layer that computes the scores, a Gemm or a 1×1 Conv. Return None if the scores do
    not come from such a layer."""
    for node in from_scores(graph):
        if isinstance(node, Gemm):
            return node
        if isinstance(node, Conv):
            return node if is_of_one_position(node) else None
    return None


def is_of_one_position(node: Conv) -> bool:
    """Return whether each output position of a Conv depends on one input position only."""
    problem = node.problem
    return problem.groups == 1 and problem.window.kernel_volume == 1


def from_scores(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of the graph backwards from the scores. Stop after the first node that reads
    several values, or that has another type than the types in `_only_value`."""
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
    """Return the value from which `name` is computed only by Reshapes and Identities."""
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
        f"embedding = {named!r}: {graph.name} has no node of that name; its last nodes are"
        f" {', '.join(last)}"
    )


def in_onnx(network: LoadedModel, name: str) -> Inner | Absent:
    """Return the value of the ONNX model that has the same elements as `name`, or the reason why
    there is none. The two values may have different shapes."""
    graph = network.graph
    if origin(graph, name) == origin(graph, graph.outputs[0]):
        return Absent("the output of this node is the scores; name an earlier node")
    written = {output for node in network.proto.graph.node for output in node.output}
    writers = {node.output: node for node in graph.nodes}
    shape = graph.shape(name)
    while name not in written:
        if not isinstance(node := writers.get(name), Reshape | Identity):
            return Absent(f"no node of the file has the output {name}; name another node")
        name = node.x
    return Inner(name, shape)
