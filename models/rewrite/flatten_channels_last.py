"""Flattens a tensor x before a Gemm in the order H, W, C instead of C, H, W.

    Σ_j W[k,j] · flat_CHW(x)[j] = Σ_i W'[k,i] · flat_HWC(x)[i],   W'[k, (h,w,c)] = W[k, (c,h,w)]

H, W, C is the order of x in memory, so the Reshape copies nothing. The columns of the Gemm's weight
are permuted to the same order. Activations may lie between the Reshape and the Gemm.

If C = 1 or H·W = 1, both orders are equal, and the rule always applies. Otherwise, it does not
apply if x has gaps in memory, or if a node other than such a Gemm reads the vector.
"""

from dataclasses import replace
from math import prod

import numpy as np

from models.graph import Activate, Gemm, Identity, Node, Reshape, Shape, Weight
from models.quantized_filters import is_quantized
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def flatten_channels_last(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite in which `node` flattens an image in the order H, W, C."""
    if not isinstance(node, Reshape) or node.channels_last:
        return None
    shape, vector = view.shape(node.x), view.shape(node.output)
    if not shape or sum(size > 1 for size in vector) > 1:
        return None
    free = replace(node, channels_last=True)
    if shape[0] == 1 or prod(shape[1:]) == 1:
        return Rewrite(nodes=(free,))
    inside = view.value(node.x).inside
    if inside is not None:
        return Refusal(f"{node.x} is stored in {inside.parent}, with gaps between pixels")
    gemms = _readers_in_order(view, node.output)
    if isinstance(gemms, Refusal):
        return gemms
    weights = {view.fresh(f"{gemm.output}.weight"): _permuted(view, gemm, shape) for gemm in gemms}
    permuted = (replace(gemm, weight=name) for gemm, name in zip(gemms, weights, strict=True))
    return Rewrite(nodes=(free, *permuted), weights=weights)


def _is_of_floats(view: GraphView, gemm: Gemm) -> bool:
    """Return whether a Gemm reads one float vector per image."""
    return len(view.shape(gemm.x)) == 1 and not is_quantized(view.value(gemm.x).stored)


def _permuted(view: GraphView, gemm: Gemm, shape: Shape) -> Weight:
    """Return the Gemm's weight (K×(C·H·W)) with its columns in the order H, W, C."""
    filters, columns = view.shape(gemm.weight)
    by_axis = weight_of(view, gemm.weight).reshape(filters, *shape)
    return np.moveaxis(by_axis, 1, -1).reshape(filters, columns)


def _readers_in_order(view: GraphView, vector: str) -> list[Gemm] | Refusal:
    """Return the Gemms that read a vector, directly or through activations.

    If anything else depends on the order of the vector's elements, return a Refusal with the
    reason.
    """
    gemms: list[Gemm] = []
    pending = [vector]
    while pending:
        name = pending.pop()
        if name in view.outputs:
            return Refusal(f"{name} is an output of the network, in C×H×W order")
        inside = view.value(name).inside
        if inside is not None:
            return Refusal(f"{name} is stored in {inside.parent}, in C×H×W order")
        for reader in view.readers(name):
            if isinstance(reader, Activate | Identity):
                pending.append(reader.output)
            elif isinstance(reader, Gemm) and _is_of_floats(view, reader):
                gemms.append(reader)
            else:
                return Refusal(f"{reader.name} reads {name} in C×H×W order")
    return gemms
