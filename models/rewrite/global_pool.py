"""Replaces a Pool whose only window covers the whole image, or a Reduce over the whole image, by a
GlobalPool.

A Pool may have padding if it is a maximum, or an average that does not count padding.
"""

from kernels.problems.pool import PoolKind
from kernels.problems.reduction import ReduceKind
from models.graph import GlobalPool, Node, Pool, Reduce
from models.rewrite.rule import GraphView, Outcome, Rewrite

_KINDS = {ReduceKind.MEAN: PoolKind.AVERAGE, ReduceKind.MAX: PoolKind.MAX}


def global_pool(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces `node` by a GlobalPool, if `node` is a Pool or Reduce over the
    whole image."""
    if isinstance(node, Reduce):
        rank = len(view.shape(node.x))
        if node.kind not in _KINDS or rank not in (3, 4) or node.axes != tuple(range(1, rank)):
            return None
        pool = GlobalPool(name=node.name, output=node.output, x=node.x, kind=_KINDS[node.kind])
        return Rewrite(nodes=(pool,))
    if not isinstance(node, Pool):
        return None
    kind, window = node.problem.kind, node.problem.window
    covers = all(
        dilation == 1 and begin + size <= kernel
        for size, kernel, dilation, begin in zip(
            window.input, window.kernel, window.dilations, window.pads_begin, strict=True
        )
    )
    if not covers or window.output_volume != 1:
        return None
    if kind is PoolKind.AVERAGE_PADDED:
        if any(window.pads_begin + window.pads_end):
            return None
        kind = PoolKind.AVERAGE
    return Rewrite(nodes=(GlobalPool(name=node.name, output=node.output, x=node.x, kind=kind),))
