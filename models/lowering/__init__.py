"""Converts a graph's nodes to kernel launches on named buffers.

    graph ─ nodes (one function per node) ─ tape: launches, buffers, weights
                 context: the buffer of each value

Each node becomes as few launches as possible. A node needs no launch if its output can be a view of
an existing buffer. Examples are a Reshape that moves nothing, and a Slice of channels. A node
overwrites its input if no later node reads the input. If a Concat was removed, the nodes that
compute its inputs write directly to its output. The kernel that ranks scores also computes the last
softmax (last_softmax).
"""

from kernels.image.place import Kind
from kernels.operations.top_k import ScoreKind
from models.graph import Graph
from models.lowering.buffer_view import BufferView
from models.lowering.context import INPUT, OUTPUT, Choose, Context
from models.lowering.last_softmax import without_last_dequantize, without_last_softmax
from models.lowering.nodes import lower_node
from models.lowering.tape import (
    BufferOperand,
    MakeWeight,
    Operand,
    Tape,
    TapeStep,
    WeightOperand,
)
from models.preprocessing import Preprocessing
from models.scores import OutputKind

__all__ = [
    "INPUT",
    "OUTPUT",
    "BufferOperand",
    "BufferView",
    "Choose",
    "MakeWeight",
    "Operand",
    "Tape",
    "TapeStep",
    "WeightOperand",
    "lower",
]


def lower(
    graph: Graph, preprocessing: Preprocessing, n: int, choose: Choose, kind: Kind = Kind.PIXELS
) -> Tape:
    """Return the kernel launches that compute the buffer OUTPUT from n images in the buffer INPUT.

    The launches accept images of the kind `kind`, and of all earlier kinds in `Kind`. The graph's
    first output holds the scores. All other outputs remain in the buffers to which their nodes
    write them.
    """
    output = preprocessing.output
    # If no softmax computes probabilities, the host converts the few ranked scores.
    score = ScoreKind.LOGITS if output.by_softmax else ScoreKind.PROBABILITIES
    if output is OutputKind.PROBABILITIES and (logits := without_last_softmax(graph)) is not None:
        graph, score = logits, ScoreKind.SOFTMAX
    to = Context(without_last_dequantize(graph), n, choose)
    to.preprocess(preprocessing, kind)
    for index, node in enumerate(to.graph.nodes):
        to.index = index
        lower_node(to, node)
    scores, *others = to.graph.outputs
    to.rank(scores, score)
    to.tape.kept |= {name: to.views[name] for name in others}
    return to.tape
