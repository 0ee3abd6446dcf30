"""An operation that only moves or selects numbers works on bytes if they are quantised alike.

    quantize(move(dequantize(x)))  →  move(x)

Maxima, reshapes, transpositions, slices, concatenations, and nothing at all. An average over whole
images is a whole sum, whatever its two scales. Refused where values are quantised differently, or
another node needs the value ahead of Quantize.
"""

from dataclasses import replace

from kernels.problems.pool import PoolKind
from models.graph import (
    ChannelShuffle,
    Concat,
    Dequantize,
    GlobalPool,
    Node,
    Pool,
    Quantize,
    Reshape,
    Slice,
    Transpose,
)
from models.rewrite.integer_conv import behind
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite, listed


def integer_move(view: GraphView, node: Node) -> Outcome:
    """Apply the rule at the Quantize."""
    if not isinstance(node, Quantize):
        return None
    move = view.producer(node.x)
    if isinstance(move, Dequantize):
        return _nothing_between(view, node, move)
    if not isinstance(
        move, Pool | GlobalPool | Reshape | Transpose | Slice | ChannelShuffle | Concat
    ):
        return None
    if isinstance(move, Pool) and move.problem.kind is not PoolKind.MAX:
        return Refusal(f"{move.name} averages in float")
    names = {name: behind(view, name) for name in move.operands()}
    floats = [name for name, bytes_ in names.items() if bytes_ is None]
    if floats:
        return Refusal(f"{listed(floats)}, which {move.name} reads, is not quantised")
    averages = isinstance(move, GlobalPool) and move.kind is not PoolKind.MAX
    stored = {view.value(name).stored for name in (*filter(None, names.values()), node.output)}
    if len(stored) > 1 and not averages:
        return Refusal(f"{move.name} joins {listed(sorted(map(str, stored)))}")
    if tie := view.tie(move.output, node):
        return Refusal(tie)
    renamed = move.renamed({name: bytes_ for name, bytes_ in names.items() if bytes_ is not None})
    return Rewrite(nodes=(replace(renamed, output=node.output),))


def _nothing_between(view: GraphView, node: Quantize, before: Dequantize) -> Outcome:
    x, y = view.value(before.x), view.value(node.output)
    if x.stored != y.stored:
        return Refusal(f"{x.name} is stored as {x.stored}, {y.name} as {y.stored}")
    if y.name in view.outputs or x.inside is not None or y.inside is not None:
        return Refusal(f"{y.name} must exist")
    return Rewrite(rename={y.name: x.name})
