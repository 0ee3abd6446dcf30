"""Builds nodes with new weights, which are computed in float64 and stored in float32."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernels.problems.activation import Activation
from models.graph import Conv, Gemm, GraphError, Node, ScaleShift, Weight
from models.rewrite.rule import GraphView, Rewrite

Float64: TypeAlias = NDArray[np.float64]


def weight_of(view: GraphView, name: str) -> Weight:
    """Return the weight of this name. Raises GraphError if the name belongs to a computed value."""
    weight = view.weight(name)
    if weight is None:
        raise GraphError(f"{name} must be a weight, but is a value")
    return weight


def weight64(view: GraphView, name: str) -> Float64:
    """Return the weight of this name, in float64."""
    return weight_of(view, name).astype(np.float64)


def bias64(view: GraphView, node: Conv | Gemm) -> Float64:
    """Return the bias of a node, in float64, or K zeros if it has none."""
    if node.bias is None:
        return np.zeros(view.shape(node.weight)[0])
    return weight64(view, node.bias)


def along_first(vector: Float64, axes: int) -> Float64:
    """Reshape `vector` so that it broadcasts along the first axis of a tensor with this number of
    axes."""
    return vector.reshape(-1, *(1,) * (axes - 1))


def with_scale_shift(
    view: GraphView, node: Node, x: str, scale: Float64, shift: Float64, act: Activation | None
) -> Rewrite:
    """Return a rewrite that replaces `node` by act(x · scale + shift), with one scale and one shift
    per channel."""
    names = view.fresh(f"{node.output}.scale"), view.fresh(f"{node.output}.shift")
    new = ScaleShift(
        name=node.name, output=node.output, x=x, scale=names[0], shift=names[1], activation=act
    )
    return Rewrite(nodes=(new,), weights=_float32(dict(zip(names, (scale, shift), strict=True))))


def with_weights(
    view: GraphView, node: Conv | Gemm, weight: Float64, bias: Float64
) -> tuple[Conv | Gemm, dict[str, Weight]]:
    """Return a copy of `node` with a new filter and bias, and a dict of these two weights by
    name."""
    names = view.fresh(f"{node.output}.weight"), view.fresh(f"{node.output}.bias")
    weights = _float32(dict(zip(names, (weight, bias), strict=True)))
    return replace(node, weight=names[0], bias=names[1]), weights


def _float32(arrays: dict[str, Float64]) -> dict[str, Weight]:
    return {name: array.astype(np.float32, order="C") for name, array in arrays.items()}
