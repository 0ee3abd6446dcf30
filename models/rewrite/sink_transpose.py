"""A Transpose moves behind the node that reads it, until it meets another that undoes it.

    f(transpose(x)) = transpose(f'(x))   where f' is f with its axes, and its constants, moved

f is an activation, Normalise, Reduce, Softmax, Slice, an operation of two such values or of one and
a constant, a Concat, or a Gemm along the channels, which becomes a 1×1 Conv. So networks that
compute on H×W×C between convolutions (ConvNeXt) compute on C×H×W, where kernels have the channels
side by side anyway. Two Transposes become one; one that moves only axes of size 1 becomes a
Reshape. Refused nowhere; where other nodes read the transposed value it stays for them.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kernels.problems.conv import ConvProblem
from kernels.problems.window import Window
from models.graph import (
    Activate,
    Binary,
    Concat,
    Conv,
    Gemm,
    Node,
    Normalise,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
    Value,
    Weight,
)
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Rewrite

Axes = tuple[int, ...]


def sink_transpose(view: GraphView, node: Node) -> Outcome:
    """Apply the rule at the node that reads the Transpose."""
    if isinstance(node, Transpose):
        return _one_transpose(view, node)
    axes = _axes_read(view, node)
    if axes is None:
        return None
    move = _MOVES.get(type(node))
    moved = move(view, node, axes) if move else None
    if moved is None:
        return None
    shape = view.shape(node.output)
    name = view.fresh(f"{node.output}.untransposed")
    value = Value(name, tuple(shape[axes.index(axis)] for axis in range(len(shape))))
    back = Transpose(name=f"{name}.transposed", output=node.output, x=name, axes=axes)
    return Rewrite(nodes=(replace(moved[0], output=name), back), values=(value,), weights=moved[1])


def _one_transpose(view: GraphView, node: Transpose) -> Outcome:
    before, shape = view.producer(node.x), view.shape(node.x)
    if isinstance(before, Transpose):
        axes = tuple(before.axes[axis] for axis in node.axes)
        return Rewrite(nodes=(replace(node, x=before.x, axes=axes),))
    long = [axis for axis in node.axes if shape[axis] > 1]
    if long == sorted(long) and node.axes != tuple(range(len(shape))):
        return Rewrite(nodes=(Reshape(name=node.name, output=node.output, x=node.x),))
    return None


def _axes_read(view: GraphView, node: Node) -> Axes | None:
    """Return the axes by which all values that the node reads are transposed, or None if they
    differ."""
    found = set()
    for name in node.operands():
        if view.weight(name) is None:
            producer = view.producer(name)
            found.add(producer.axes if isinstance(producer, Transpose) else None)
    return found.pop() if len(found) == 1 else None


Moved = tuple[Node, dict[str, Weight]] | None


def _source(view: GraphView, name: str) -> str:
    """Return the value before the transpose."""
    producer = view.producer(name)
    return producer.x if isinstance(producer, Transpose) else name


def _untransposed(view: GraphView, name: str, axes: Axes) -> Weight:
    """Return the constant, permuted to match the value before the transpose."""
    weight = weight_of(view, name)
    aligned = weight.reshape((1,) * (len(axes) - weight.ndim) + weight.shape)
    return aligned.transpose([axes.index(axis) for axis in range(len(axes))])


def _activate(view: GraphView, node: Activate, axes: Axes) -> Moved:  # noqa: ARG001  it has no axis
    return replace(node, x=_source(view, node.x)), {}


def _along_axis(view: GraphView, node: Softmax | Slice, axes: Axes) -> Moved:
    return replace(node, x=_source(view, node.x), axis=axes[node.axis]), {}


def _concat(view: GraphView, node: Concat, axes: Axes) -> Moved:
    parts = tuple(_source(view, part) for part in node.parts)
    return replace(node, parts=parts, axis=axes[node.axis]), {}


def _reduce(view: GraphView, node: Reduce, axes: Axes) -> Moved:
    along = tuple(sorted(axes[axis] for axis in node.axes))
    return replace(node, x=_source(view, node.x), axes=along), {}


def _normalise(view: GraphView, node: Normalise, axes: Axes) -> Moved:
    if node.groups != 1:
        return None
    weights = {
        view.fresh(f"{node.output}.{role}"): _untransposed(view, name, axes)
        for role, name in (("scale", node.scale), ("shift", node.shift))
    }
    scale, shift = weights
    along = tuple(sorted(axes[axis] for axis in node.axes))
    moved = replace(node, x=_source(view, node.x), scale=scale, shift=shift, axes=along)
    return moved, weights


def _binary(view: GraphView, node: Binary, axes: Axes) -> Moved:
    names, weights = {}, {}
    for name in {node.a, node.b}:
        if view.weight(name) is None:
            if len(view.shape(name)) != len(axes):
                return None
            names[name] = _source(view, name)
        else:
            names[name] = view.fresh(f"{node.output}.constant")
            weights[names[name]] = _untransposed(view, name, axes)
    return node.renamed(names), weights


def _gemm(view: GraphView, node: Gemm, axes: Axes) -> Moved:
    """Return a 1×1 Conv for a Gemm over the channels of each pixel, or None."""
    x = _source(view, node.x)
    c, *spatial = view.shape(x)
    if axes[-1] != 0 or len(spatial) not in (2, 3):
        return None
    filters, size = weight_of(view, node.weight), tuple(spatial)
    one, none = (1,) * len(size), (0,) * len(size)
    window = Window(size, one, one, one, none, none, size)
    weight = view.fresh(f"{node.output}.weight")
    conv = Conv(
        name=node.name,
        output=node.output,
        x=x,
        weight=weight,
        bias=node.bias,
        problem=ConvProblem(1, c, len(filters), window),
        activation=node.activation,
    )
    return conv, {weight: np.reshape(filters, (*filters.shape, *one))}


_MOVES: dict[type[Node], Callable[..., Moved]] = {
    Activate: _activate,
    Binary: _binary,
    Concat: _concat,
    Gemm: _gemm,
    Normalise: _normalise,
    Reduce: _reduce,
    Slice: _along_axis,
    Softmax: _along_axis,
}
