"""A Pool whose one window covers the whole image is a GlobalPool.

Padding does not count in a maximum, nor in an average over the positions inside the image; an
average that counts padding must have none.
"""

from kernels.problems.pool import PoolKind
from models.graph import GlobalPool, Node, Pool
from models.rewrite.rule import GraphView, Outcome, Rewrite


def global_pool(_: GraphView, node: Node) -> Outcome:
    """The rule."""
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
