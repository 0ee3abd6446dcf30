"""Finds out from a graph whether a value can be negative."""

from kernels.problems.activation import Activation, ActivationKind
from models.graph import (
    Activate,
    Binary,
    ChannelShuffle,
    Concat,
    Conv,
    Gemm,
    GlobalPool,
    Identity,
    Normalise,
    Pool,
    Reshape,
    ScaleShift,
    Slice,
    Transpose,
)
from models.rewrite.rule import GraphView

_ALWAYS = {
    ActivationKind.RELU,
    ActivationKind.SIGMOID,
    ActivationKind.HARD_SIGMOID,
    ActivationKind.SOFTPLUS,
}


def is_nonnegative(view: GraphView, name: str) -> bool:
    """Return True if the graph proves that no element of the value is negative. Return False if
    this is unknown."""
    pending, seen = [name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:  # nested Concats may list a value many times
            continue
        seen.add(name)
        match view.producer(name):
            case Conv() | Gemm() | ScaleShift() | Normalise() | Binary() | Activate() as node:
                if node.activation is None or not _is_nonnegative_activation(node.activation):
                    return False
            case (
                Pool() | GlobalPool() | Slice() | Reshape() | Transpose() | ChannelShuffle() as node
            ):
                pending.append(node.x)
            case Identity() as node:
                pending.append(node.x)
            case Concat() as node:
                pending += node.parts
            case _:
                pieces = view.pieces(name)
                if not pieces:
                    return False
                pending += pieces
    return True


def _is_nonnegative_activation(activation: Activation) -> bool:
    if activation.kind is ActivationKind.CLIP:
        return min(activation.a, activation.b) >= 0
    return activation.kind in _ALWAYS
