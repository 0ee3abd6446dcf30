"""What is known of a value's range: whether it can be below zero."""

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
    Pool,
    Reshape,
    ScaleShift,
    Slice,
    Transpose,
)
from models.rewrite.rule import GraphView

_ALWAYS = {ActivationKind.RELU, ActivationKind.SIGMOID, ActivationKind.HARD_SIGMOID}


def is_nonnegative(view: GraphView, name: str) -> bool:
    """Whether every element of the value is proved to be at least 0; False where unknown."""
    match view.producer(name):
        case Conv() | Gemm() | ScaleShift() | Binary() | Activate() as node:
            return node.activation is not None and _is_nonnegative_activation(node.activation)
        case Pool() | GlobalPool() | Slice() | Reshape() | Transpose() | ChannelShuffle() as node:
            return is_nonnegative(view, node.x)
        case Identity() as node:
            return is_nonnegative(view, node.x)
        case Concat() as node:
            return all(is_nonnegative(view, part) for part in node.parts)
        case _:
            pieces = view.pieces(name)
            return bool(pieces) and all(is_nonnegative(view, piece) for piece in pieces)


def _is_nonnegative_activation(activation: Activation) -> bool:
    if activation.kind is ActivationKind.CLIP:
        return activation.a >= 0
    return activation.kind in _ALWAYS
