"""Flattening C×H×W moves nothing in an NHWC buffer when it reads H×W×C; Gemm columns follow.

    Σ_j W[k, j] · flat_CHW(x)[j] = Σ_i W[k, order[i]] · flat_HWC(x)[i]

where order[i] is the place in C, H, W order of the element that stands i-th in H, W, C order.
Activations may stand between. Where both orders are one (C = 1, or H·W = 1) no Gemm is needed.
Refused where anything but such a Gemm needs the vector: it would see another order.
"""

from dataclasses import replace

import numpy as np

from models.graph import Activate, Gemm, Identity, Node, Reshape
from models.rewrite.folding import weight64, with_weights
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def flatten_channels_last(view: GraphView, node: Node) -> Outcome:
    """The rule, at the Reshape."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    shape, vector = view.shape(node.x), view.shape(node.output)
    if not shape or sum(size > 1 for size in vector) > 1:
        return None
    order = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), 0, -1).ravel()
    free = replace(node, channels_last=True)
    if np.all(np.diff(order) == 1):
        return Rewrite(nodes=(free,))
    gemms = _readers_in_order(view, node.output)
    if isinstance(gemms, Refusal):
        return gemms
    nodes: list[Node] = [free]
    weights = {}
    for gemm in gemms:
        permuted, new = with_weights(view, gemm, weight64(view, gemm.weight)[:, order], None)
        nodes.append(permuted)
        weights.update(new)
    return Rewrite(nodes=tuple(nodes), weights=weights)


def _readers_in_order(view: GraphView, vector: str) -> list[Gemm] | Refusal:
    """The Gemms that a vector reaches, past activations; or who else would see its order."""
    gemms: list[Gemm] = []
    pending = [vector]
    while pending:
        name = pending.pop()
        if name in view.outputs:
            return Refusal(f"{name} is an output of the network, in C×H×W order")
        if view.value(name).inside is not None:
            return Refusal(f"{name} lies inside another value, in C×H×W order")
        for reader in view.readers(name):
            if isinstance(reader, Activate | Identity):
                pending.append(reader.output)
            elif isinstance(reader, Gemm) and len(view.shape(name)) == 1:
                gemms.append(reader)
            else:
                return Refusal(f"{reader.name} reads {name} in C×H×W order")
    return gemms
