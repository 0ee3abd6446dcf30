"""Creates the report of `convoy inspect` about a rewritten network's nodes, costs and
algorithms."""

from dataclasses import dataclass

from kernels.convolution.algorithms import ALGORITHMS
from kernels.problems.precision import FLOAT, Precision
from models.classifier import Classifier
from models.cost import bytes_moved, flops_per_image
from models.graph import (
    Activate,
    Binary,
    Conv,
    Gemm,
    GlobalPool,
    Graph,
    Node,
    Pool,
    Softmax,
)
from models.layers import layers_of
from models.rewrite import RewriteResult


@dataclass(frozen=True, slots=True)
class Choice:
    """Names an algorithm for a convolution. `refusal` is the reason why it cannot run the
    convolution, or None."""

    algorithm: str
    refusal: str | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Reports on a node for a batch of N images: its kind, its cost, and the rewrites that produced
    it."""

    name: str
    operation: str
    detail: str  # the problem of a Conv or Pool; the operation of an elementwise node
    shape: tuple[int, ...]  # the shape of the output for one image
    fused: tuple[str, ...]  # fused parts: bias, residual, projection, activation, place in a Concat
    flops: int  # a multiply-add counts as two
    bytes: int  # the bytes that it would move without caches
    rules: tuple[str, ...]  # the rewrite rules that made it
    refusals: tuple[tuple[str, str], ...]  # (rule, reason) for each rule that refused the node
    choices: tuple[Choice, ...]  # only for a Conv


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Reports on a network for a batch of N images, node by node and in total."""

    name: str
    n: int
    precision: str
    nodes_loaded: int
    nodes: tuple[NodeReport, ...]
    weight_bytes: int
    origin: str  # one line: the facts that each file gave; or ""
    scores: str  # one line: the output with the scores, their kind, and the reason
    layers: str  # the layers of a quantized model that a GPU computes on integers; else ""
    layers_on_cpu: str  # the layers that ONNX Runtime computes on integers; else ""

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """Return the nodes that stay in float32 although another precision is set, each with the
        reason."""
        return tuple(
            (node.name, reason)
            for node in self.nodes
            for rule, reason in node.refusals
            if rule == self.precision
        )

    @property
    def flops(self) -> int:
        """Return the number of operations of all nodes."""
        return sum(node.flops for node in self.nodes)

    @property
    def bytes(self) -> int:
        """Return the number of bytes that all nodes move."""
        return sum(node.bytes for node in self.nodes)


def report(classifier: Classifier, n: int = 1, *, layers_on_cpu: str = "") -> NetworkReport:
    """Return the report of a classifier's rewritten network and its costs for n images.

    `layers_on_cpu` is a CPU engine's description of the layers of a quantized model.
    """
    loaded, rewritten = classifier.network.graph, classifier.rewritten
    result = rewritten.graph
    return NetworkReport(
        name=loaded.name,
        n=n,
        precision=classifier.precision.value,
        nodes_loaded=len(loaded.nodes),
        nodes=tuple(_node_report(rewritten, node, n) for node in result.nodes),
        weight_bytes=_weight_bytes(result),
        origin=classifier.origin,
        scores=classifier.scores,
        layers=str(layers_of(result)) if classifier.precision is Precision.INT8 else "",
        layers_on_cpu=layers_on_cpu,
    )


def _weight_bytes(graph: Graph) -> int:
    """Return the number of bytes of all weights. The weight of a Conv or Gemm is stored in the same
    type as the node's input."""
    stored = {
        node.weight: graph.values[node.x].stored
        for node in graph.nodes
        if isinstance(node, Conv | Gemm)
    }
    return sum(
        weight.size * stored.get(name, FLOAT).itemsize for name, weight in graph.weights.items()
    )


def _node_report(rewritten: RewriteResult, node: Node, n: int) -> NodeReport:
    graph = rewritten.graph
    return NodeReport(
        name=node.name,
        operation=type(node).__name__,
        detail=_detail(node, n),
        shape=graph.shape(node.output),
        fused=_fused(graph, node),
        flops=n * flops_per_image(graph, node),
        bytes=bytes_moved(graph, node, n),
        rules=tuple(dict.fromkeys(step.rule for step in rewritten.made_by(node.name))),
        refusals=tuple((r.rule, r.reason) for r in rewritten.refused if r.node == node.name),
        choices=_choices(node, n),
    )


def _detail(node: Node, n: int) -> str:
    match node:
        case Conv():
            return str(node.problem.with_batch(n))
        case Pool():
            w = node.problem.window
            kernel, strides = ("x".join(map(str, sizes)) for sizes in (w.kernel, w.strides))
            return f"{node.problem.kind.value} {kernel} stride {strides}"
        case GlobalPool():
            return node.kind.value
        case Binary():
            return node.op.value
        case Activate():
            return str(node.activation)
        case Softmax(log=True):
            return "logarithm"
        case _:
            return ""


def _fused(graph: Graph, node: Node) -> tuple[str, ...]:
    parts = []
    if isinstance(node, Conv) and node.problem.prologue is not None:
        parts.append(f"{node.problem.prologue} ahead")
    if getattr(node, "bias", None) is not None:
        parts.append("bias")
    if getattr(node, "residual", None) is not None:
        projected = isinstance(node, Conv) and node.problem.projection is not None
        parts.append("projection" if projected else "residual")
    activation = getattr(node, "activation", None)
    if activation is not None and not isinstance(node, Activate):
        parts.append(str(activation))
    inside = graph.values[node.output].inside
    if inside is not None:
        end = inside.offset + graph.shape(node.output)[0]
        parts.append(f"into {inside.parent}[{inside.offset}:{end}]")
    return tuple(parts)


def _choices(node: Node, n: int) -> tuple[Choice, ...]:
    if not isinstance(node, Conv):
        return ()
    problem = node.problem.with_batch(n)
    return tuple(Choice(a.name, a.supports(problem)) for a in ALGORITHMS)
