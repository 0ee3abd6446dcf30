"""From typed nodes to kernel launches on named buffers.

    graph ─ nodes (one function a node) ─ tape: launches, buffers, weights
            context: where each value lies (placement)

Each node becomes as few launches as it can: none where its output is another view of what is there
(a Reshape that moves nothing, a run of channels). It overwrites what it reads where nobody else
reads that. Where a value lies inside another (a fused Concat) its node writes it there.
"""

from models.graph import Graph
from models.lowering.context import INPUT, Choose, Context
from models.lowering.nodes import lower_node
from models.lowering.placement import Place
from models.lowering.tape import BufferOperand, Cost, MakeWeight, Operand, Tape, WeightOperand
from models.preprocessing import Preprocessing

__all__ = [
    "INPUT",
    "BufferOperand",
    "Choose",
    "Cost",
    "MakeWeight",
    "Operand",
    "Place",
    "Tape",
    "WeightOperand",
    "lower",
]


def lower(graph: Graph, preprocessing: Preprocessing, n: int, choose: Choose) -> tuple[Tape, Place]:
    """The launches for n images, and where their scores lie: one dense row an image."""
    to = Context(graph, n, choose)
    to.preprocess(preprocessing)
    for index, node in enumerate(graph.nodes):
        to.index = index
        lower_node(to, node)
    (output,) = graph.outputs
    return to.tape, to.dense(output)
