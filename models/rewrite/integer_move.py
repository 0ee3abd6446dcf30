"""Lets an operation that only moves or selects elements work on bytes, if its inputs and its result
are quantized.

    quantize(move(dequantize(x)))  →  move(x)             if x and the result have the same scale
                                   →  move(quantize(x))   otherwise; this Quantize changes the scale

"move" is a maximum pool, Reshape, Transpose, Slice, Pad, Concat or ChannelShuffle. There may also
be no operation between the Dequantize and the Quantize. A maximum of bytes is correct, because
quantization keeps the order of numbers. A global average also works on bytes, even if the scales
differ. The rule does not apply if another node reads the float result of the operation.
"""

from dataclasses import replace

from kernels.problems.pool import PoolKind
from models.graph import (
    ChannelShuffle,
    Concat,
    Dequantize,
    GlobalPool,
    Node,
    Pad,
    Pool,
    Quantize,
    Reshape,
    Slice,
    Transpose,
    Value,
)
from models.rewrite.integer_conv import behind, quantizes
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite, listed


def integer_move(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite in which an operation that moves or selects elements works on bytes. The
    Quantize `node` reads the result of the operation."""
    if not quantizes(node, view):
        return None
    move = view.producer(node.x)
    if isinstance(move, Dequantize):
        return _nothing_between(view, node, move)
    if not isinstance(
        move, Pad | Pool | GlobalPool | Reshape | Transpose | Slice | ChannelShuffle | Concat
    ):
        return None
    if isinstance(move, Pool) and move.problem.kind is not PoolKind.MAX:
        return Refusal(f"{move.name} averages in float")
    names = {name: behind(view, name) for name in move.operands()}
    floats = [name for name, bytes_ in names.items() if bytes_ is None]
    if floats:
        return Refusal(f"{listed(floats)}, which {move.name} reads, is not quantized")
    if tie := view.tie(move.output, node):
        return Refusal(tie)
    averages = isinstance(move, GlobalPool) and move.kind is not PoolKind.MAX
    stored = view.value(node.output).stored
    again: dict[str, Value] = {}
    for bytes_ in filter(None, names.values()):
        value = view.value(bytes_)
        if value.stored != stored and not averages:
            name = view.fresh(f"{bytes_}/for/{node.output}")
            again[bytes_] = Value(name, value.shape, stored=stored)
    read = {
        name: again[bytes_].name if bytes_ in again else bytes_
        for name, bytes_ in names.items()
        if bytes_ is not None
    }
    return Rewrite(
        nodes=(
            *(
                Quantize(name=f"{node.name}/{bytes_}", output=value.name, x=bytes_)
                for bytes_, value in again.items()
            ),
            replace(move.renamed(read), output=node.output),
        ),
        values=tuple(again.values()),
    )


def _nothing_between(view: GraphView, node: Quantize, before: Dequantize) -> Outcome:
    x, y = view.value(before.x), view.value(node.output)
    if x.stored != y.stored:
        return Rewrite(nodes=(replace(node, x=x.name),))
    if y.name in view.outputs or x.inside is not None or y.inside is not None:
        return Refusal(f"{y.name} is an output or part of another value, and must be written")
    return Rewrite(rename={y.name: x.name})
