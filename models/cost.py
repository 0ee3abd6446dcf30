"""Computes the cost of a node: the number of arithmetic operations, and the number of bytes that
every implementation must read and write."""

from math import prod

from models.graph import (
    Activate,
    Attention,
    Binary,
    Conv,
    Dequantize,
    Gemm,
    GlobalPool,
    Graph,
    Lrn,
    Move,
    Node,
    Normalise,
    Pool,
    Product,
    Quantize,
    Reduce,
    Resample,
    ScaleShift,
    Softmax,
)


def flops_per_image(graph: Graph, node: Node) -> int:
    """Return the number of arithmetic operations of the node for one image.

    Multiplications, additions, comparisons and transcendental functions count as one operation
    each.
    """
    out = prod(graph.shape(node.output))
    epilogue = out * sum(
        getattr(node, part, None) is not None for part in ("bias", "residual", "activation")
    )
    match node:
        case Conv():
            return 2 * node.problem.macs + _prologue_flops(graph, node) + epilogue
        case Gemm():
            return 2 * out * graph.shape(node.weight)[1] + epilogue
        case Attention():
            *_, keys, depth = graph.shape(node.k)
            rows, width = out // graph.shape(node.output)[-1], graph.shape(node.output)[-1]
            return rows * keys * (2 * (depth + width) + 4) + epilogue // out * rows * keys
        case Product():
            return 2 * out * graph.shape(node.a)[-1]
        case Pool():
            return out * node.problem.window.kernel_volume
        case GlobalPool():
            return prod(graph.shape(node.x))
        case ScaleShift():
            return 2 * out + epilogue
        case Binary():
            return out + epilogue
        case Activate():
            return out
        case Lrn():
            return out * (2 * node.size + 3)
        case Normalise():
            return 7 * out + epilogue
        case Reduce():
            return prod(graph.shape(node.x))
        case Resample():
            return 2 * out * prod(graph.shape(table)[1] for table in node.taps)
        case Softmax():
            return 4 * out
        case Quantize():
            return 3 * out  # divides, rounds, clamps
        case Dequantize():
            return 2 * out
        case _ if isinstance(node, Move):
            return 0
        case _:
            raise TypeError(f"{type(node).__name__} has no formula for its cost; add one here")


def exponentials_per_image(graph: Graph, node: Node) -> int:
    """Return the number of exponentials that a softmax in the node computes per image: one per
    score."""
    match node:
        case Attention():
            return prod(graph.shape(node.output)[:-1]) * graph.shape(node.k)[-2]
        case Softmax():
            return prod(graph.shape(node.output))
        case _:
            return 0


def _prologue_flops(graph: Graph, conv: Conv) -> int:
    prologue = conv.problem.prologue
    if prologue is None:
        return 0
    per_value = (2 if prologue.epsilon is None else 7) + (prologue.activation is not None)
    return per_value * prod(graph.shape(conv.x))


def bytes_moved(graph: Graph, node: Node, n: int) -> int:
    """Return how many bytes the node reads and writes for n images. Each operand is read once, and
    the output is written once.

    The elements of weights are assumed to have the same size in bytes as the elements of the
    output.
    """
    values = [name for name in node.operands() if name in graph.values]
    weights = [name for name in node.operands() if name in graph.weights]

    def nbytes(name: str, stored_as: str) -> int:
        return int(graph.values[stored_as].stored.itemsize) * prod(graph.shape(name))

    moved = n * sum(nbytes(name, name) for name in (*values, node.output))
    return moved + sum(nbytes(name, node.output) for name in weights)
