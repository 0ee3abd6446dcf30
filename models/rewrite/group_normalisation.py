"""Replaces the three nodes of an exported group normalisation by one Normalise.

    reshape(C×H×W → g × C/g·H·W), normalise along the last axes, reshape back

See Wu & He 2018, Group Normalization, section 3.1. The rule does not apply if other nodes read the
normalised tensor before it is reshaped back.
"""

from math import prod

import numpy as np

from models.graph import Node, Normalise, Reshape
from models.rewrite.folding import along_first, weight64
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def group_normalisation(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces a group normalisation by one Normalise, if `node` is the last
    of its three nodes (Reshape, Normalise, Reshape)."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    normalised = view.producer(node.x)
    if not isinstance(normalised, Normalise) or normalised.activation is not None:
        return None
    split = view.producer(normalised.x)
    if not isinstance(split, Reshape) or split.channels_last:
        return None
    shape, groups = view.shape(split.x), view.shape(normalised.x)[0]
    rank = len(view.shape(normalised.x))
    weights = [weight64(view, name) for name in (normalised.scale, normalised.shift)]
    if (
        view.shape(node.output) != shape
        or shape[0] % groups
        or normalised.groups != 1
        or normalised.axes != tuple(range(1, rank))
        or any(prod(w.shape) not in (1, w.shape[0]) or w.ndim not in (0, rank) for w in weights)
    ):
        return None
    if tie := view.tie(normalised.output, node):
        return Refusal(tie)
    names = [view.fresh(f"{node.output}.{role}") for role in ("scale", "shift")]
    one = Normalise(
        name=node.name,
        output=node.output,
        x=split.x,
        scale=names[0],
        shift=names[1],
        axes=tuple(range(len(shape))),
        epsilon=normalised.epsilon,
        groups=groups,
    )
    per_channel = [
        np.repeat(np.broadcast_to(w.reshape(-1), groups), shape[0] // groups) for w in weights
    ]
    return Rewrite(
        nodes=(one,),
        weights={
            name: along_first(w, len(shape)).astype(np.float32)
            for name, w in zip(names, per_channel, strict=True)
        },
    )
