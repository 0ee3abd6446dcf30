"""Replaces the three nodes of an exported channel shuffle (ShuffleNet) by one ChannelShuffle.

    reshape(C×H×W → g × C/g × H×W), swap the first two axes, reshape back: channel j·(C/g) + i
    moves to i·g + j

See Zhang et al. 2018, ShuffleNet, section 3.1. If other nodes also read the result of the first or
second node, that node is kept.
"""

from models.graph import ChannelShuffle, Node, Reshape, Transpose
from models.rewrite.rule import GraphView, Outcome, Rewrite


def channel_shuffle(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces a channel shuffle by a ChannelShuffle, if `node` is the last
    of its three nodes (Reshape, Transpose, Reshape)."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    swap = view.producer(node.x)
    if not isinstance(swap, Transpose):
        return None
    split = view.producer(swap.x)
    if not isinstance(split, Reshape) or split.channels_last:
        return None
    shape = view.shape(split.x)
    if swap.axes != (1, 0, *range(2, len(swap.axes))) or view.shape(node.output) != shape:
        return None
    groups, per_group, *_ = view.shape(swap.x)
    if groups * per_group != shape[0]:
        return None
    shuffle = ChannelShuffle(name=node.name, output=node.output, x=split.x, groups=groups)
    return Rewrite(nodes=(shuffle,))
