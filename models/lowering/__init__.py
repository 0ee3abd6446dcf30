"""From typed nodes to kernel launches on named buffers.

    graph ─ nodes (one function a node) ─ tape: launches, buffers, weights
            context: where each value lies (placement)

Each node becomes as few launches as possible: none where its output is a view of an existing buffer
(a Reshape that moves nothing, a run of channels). It overwrites its input where no later node reads
that. Where a value lies inside another (a fused Concat), its node writes it there.
"""

from models.graph import Graph
from models.lowering.context import INPUT, OUTPUT, Choose, Context
from models.lowering.nodes import lower_node
from models.lowering.placement import Place
from models.lowering.tape import (
    BufferOperand,
    MakeWeight,
    Operand,
    Tape,
    TapeStep,
    WeightOperand,
)
from models.preprocessing import Preprocessing

__all__ = [
    "INPUT",
    "OUTPUT",
    "BufferOperand",
    "Choose",
    "MakeWeight",
    "Operand",
    "Place",
    "Tape",
    "TapeStep",
    "WeightOperand",
    "lower",
]


def lower(
    graph: Graph, preprocessing: Preprocessing, n: int, choose: Choose, *, tensors: bool = False
) -> Tape:
    """The launches for n images, from INPUT to OUTPUT.

    The images are pixels, or `tensors`, which are normalised already.
    """
    to = Context(graph, n, choose)
    to.preprocess(preprocessing, tensors=tensors)
    for index, node in enumerate(graph.nodes):
        to.index = index
        lower_node(to, node)
    (output,) = graph.outputs
    to.rank(output, preprocessing.output)
    return to.tape
