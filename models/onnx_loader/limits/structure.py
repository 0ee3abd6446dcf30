"""Limits the structure of a graph so that rewrite rules take little time on it.

A rule examines all readers of a value, and searches backwards through nodes that only move, pool,
activate or scale. Real networks have few readers per value, and few such nodes in a row. This
module refuses graphs with too many readers or too many such nodes.
"""

from collections import Counter

from kernels.problems.binary_operation import BinaryOp
from models.errors import UnsupportedModelError
from models.graph import (
    Activate,
    Binary,
    Concat,
    GlobalPool,
    Graph,
    Identity,
    Node,
    Pad,
    Pool,
    Reshape,
    ScaleShift,
    Slice,
    Transpose,
)
from models.onnx_loader.limits.bounds import MOVES_LIMIT, PIECES_LIMIT, READER_LIMIT

# Node types through which rules search. Activations are included, because a rule removes
# activations that change nothing.
_PASSED = (
    Activate,
    Concat,
    GlobalPool,
    Identity,
    Pad,
    Pool,
    Reshape,
    ScaleShift,
    Slice,
    Transpose,
)
_FACTORS = (BinaryOp.MUL, BinaryOp.DIV)


def check_structure(graph: Graph) -> None:
    """Raise an error if too many nodes read one value, or if a rule would have to search too many
    nodes."""
    readers: Counter[str] = Counter()
    moves: dict[str, int] = {}  # the number of such nodes in a row that end in this value
    pieces: dict[str, int] = {}  # the number of computed values that this value joins
    for node in graph.nodes:
        read = {name for name in node.operands() if name in graph.values}
        readers.update(read)
        if not _is_passed(node):
            continue
        moves[node.output] = 1 + max((moves.get(name, 0) for name in read), default=0)
        pieces[node.output] = sum(
            pieces.get(name, 1) for name in node.operands() if name in graph.values
        )
        if moves[node.output] > MOVES_LIMIT:
            raise UnsupportedModelError(
                f"the node {node.name} is the last of {moves[node.output]} nodes in a row that only"
                f" move, pool, activate or scale; at most {MOVES_LIMIT} are supported"
            )
        if pieces[node.output] > PIECES_LIMIT:
            raise UnsupportedModelError(
                f"the node {node.name} joins {pieces[node.output]:,} values, directly or through"
                f" other nodes; at most {PIECES_LIMIT:,} are supported"
            )
    for name, count in readers.most_common(1):
        if count > READER_LIMIT:
            raise UnsupportedModelError(
                f"the value {name} is read by {count:,} nodes; at most {READER_LIMIT} are supported"
            )


def _is_passed(node: Node) -> bool:
    return isinstance(node, _PASSED) or (isinstance(node, Binary) and node.op in _FACTORS)
