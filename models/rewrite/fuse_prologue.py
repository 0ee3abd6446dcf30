"""Fuses a normalisation or a ScaleShift into the 1×1 Conv that reads its result.

    conv(n(x)) = conv with prologue n on x,   n a ScaleShift or a Normalise over the channels

The Conv's kernel computes n on its inputs as it loads them, so the normalised tensor is not stored
in memory. If several Convs read that tensor, each of them computes n. The rule does not apply if
another kind of node reads the tensor. It also does not apply to Convs with larger windows or
strides or to Convs on tensor cores, because their kernels cannot compute n.
"""

from dataclasses import replace
from math import prod

import numpy as np

from kernels.convolution.gemm import GemmConv
from kernels.problems.prologue import Prologue
from models.graph import Conv, Node, Normalise, ScaleShift
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite


def fuse_prologue(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that fuses the normalisation or ScaleShift before the Conv `node` into
    `node`."""
    if not isinstance(node, Conv) or node.problem.prologue is not None:
        return None
    before = view.producer(node.x)
    prologue = _prologue(view, before)
    if prologue is None or not isinstance(before, Normalise | ScaleShift):
        return None
    if obstacle := _obstacle(view, before.output, prologue):
        return Refusal(obstacle)
    c = node.problem.c
    names = [view.fresh(f"{node.output}.{role}") for role in ("scale", "shift")]
    weights = [weight_of(view, name) for name in (before.scale, before.shift)]
    fused = replace(
        node,
        x=before.x,
        scale=names[0],
        shift=names[1],
        problem=replace(node.problem, prologue=prologue),
    )
    return Rewrite(
        nodes=(fused,),
        weights={
            name: np.broadcast_to(weight.reshape(-1), c).copy()
            for name, weight in zip(names, weights, strict=True)
        },
    )


def _prologue(view: GraphView, node: Node | None) -> Prologue | None:
    """Return `node`, a ScaleShift or a normalisation, as the prologue of a Conv that reads its
    result. Return None if no prologue can compute `node`."""
    match node:
        case ScaleShift(activation=activation):
            return Prologue(None, activation)
        case Normalise(axes=(0,), groups=1, epsilon=epsilon, activation=activation):
            channels, *others = view.shape(node.output)
            per_channel = (channels, *(1 for _ in others))
            shapes = [view.shape(name) for name in (node.scale, node.shift)]
            if all(shape == per_channel or prod(shape) == 1 for shape in shapes):
                return Prologue(epsilon, activation)
    return None


def _obstacle(view: GraphView, name: str, prologue: Prologue) -> str | None:
    """Return the reason why the normalised tensor `name` must be stored in memory, or None."""
    if name in view.outputs:
        return f"{name} is an output of the network"
    if (inside := view.value(name).inside) is not None:
        return f"{name} is stored in {inside.parent}"
    for reader in view.readers(name):
        if not isinstance(reader, Conv) or reader.residual == name:
            return f"{name} is also read by {reader.name}"
        if reader.problem.prologue is not None:
            return f"{reader.name} has a prologue already"
        problem = replace(reader.problem, prologue=prologue)
        if reason := GemmConv().supports(problem):
            return f"gemm cannot run {reader.name} with this prologue: {reason}"
    return None
