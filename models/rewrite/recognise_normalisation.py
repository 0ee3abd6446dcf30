"""Recognises a normalisation that an exporter wrote as several nodes, and replaces it by one
Normalise.

    c / Sqrt(mean(c·c) + epsilon), c = x - mean(x)  =  Normalise(x), scale 1 and shift 0

Both means are over the same axes. If a scale and shift follow, the rule `fold_into_normalise` folds
them. If other nodes also read an intermediate result, it is kept for them.
"""

import numpy as np

from kernels.problems.activation import ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.reduction import ReduceKind
from models.graph import Activate, Binary, GlobalPool, Node, Normalise, Reduce
from models.rewrite.rule import GraphView, Outcome, Rewrite


def recognise_normalisation(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges the nodes of an exported normalisation into one Normalise.
    `node` is the division at the end of the normalisation."""
    if not isinstance(node, Binary) or node.op is not BinaryOp.DIV or node.activation is not None:
        return None
    centred, root = view.producer(node.a), view.producer(node.b)
    if not isinstance(centred, Binary) or centred.op is not BinaryOp.SUB:
        return None
    if not isinstance(root, Activate) or root.activation.kind is not ActivationKind.SQRT:
        return None
    x, axes = centred.a, _mean(view, centred.b, centred.a)
    variance = _plus_number(view, root.x)
    if axes is None or variance is None:
        return None
    name, epsilon = variance
    squares = _mean_of(view, name)
    if squares is None or squares[1] != axes:
        return None
    square = view.producer(squares[0])
    if not isinstance(square, Binary) or square.op is not BinaryOp.MUL:
        return None
    if (square.a, square.b) != (node.a, node.a) or square.activation is not None:
        return None
    names = [view.fresh(f"{node.output}.{role}") for role in ("scale", "shift")]
    one = Normalise(
        name=node.name,
        output=node.output,
        x=x,
        scale=names[0],
        shift=names[1],
        axes=axes,
        epsilon=epsilon,
    )
    weights = {names[0]: np.ones((), np.float32), names[1]: np.zeros((), np.float32)}
    return Rewrite(nodes=(one,), weights=weights)


def _mean_of(view: GraphView, name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return (x, axes) if the value `name` is a mean of x over `axes`, or otherwise None."""
    match view.producer(name):
        case Reduce(x=x, kind=ReduceKind.MEAN, axes=axes):
            return x, axes
        case GlobalPool(x=x, kind=PoolKind.AVERAGE):
            return x, tuple(range(1, len(view.shape(x))))
    return None


def _mean(view: GraphView, name: str, source: str) -> tuple[int, ...] | None:
    found = _mean_of(view, name)
    return found[1] if found is not None and found[0] == source else None


def _plus_number(view: GraphView, name: str) -> tuple[str, float] | None:
    """Return (v, number) if the value `name` is v + number, or otherwise None."""
    total = view.producer(name)
    if not isinstance(total, Binary) or total.op is not BinaryOp.ADD:
        return None
    for value, other in ((total.a, total.b), (total.b, total.a)):
        weight = view.weight(other)
        if weight is not None and weight.size == 1 and total.activation is None:
            return value, float(weight.item())
    return None
