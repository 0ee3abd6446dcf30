"""Moves a Transpose past the node that reads it, until it meets a Transpose that undoes it.

    f(transpose(x)) = transpose(f'(x))   f' is f with its axes and constants permuted

f is an activation, Normalise, Reduce, Softmax, Slice or Concat, a Reshape that keeps the channels
last, or a Gemm over several rows. It may also be an operation on two transposed tensors, or on a
transposed tensor and a constant. The Gemm becomes a 1×1 Conv with its rows as pixels.

Some networks compute on H×W×C between convolutions (ConvNeXt) or on tokens T×C (ViT). After this
rule, they compute on C×H×W or C×1×T. This costs nothing, because the kernels always store the
channels of a pixel contiguously. The advantage is that a Conv can then add a later sum as a
residual. For this purpose, the rule may also insert a Transpose before a Gemm, or at the other
operand of an Add that has one transposed operand.

Two Transposes in a row become one. A Transpose that moves only axes of size 1 becomes a Reshape. If
a Reshape after a Transpose only removes axes of size 1, both move together. If other nodes read the
transposed tensor, it is kept for them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import prod
from typing import Any

import numpy as np

from kernels.problems.conv import ConvProblem
from kernels.problems.window import Window
from models.graph import (
    Activate,
    Binary,
    Concat,
    Constant,
    Conv,
    Gemm,
    Node,
    Normalise,
    Reduce,
    Reshape,
    Shape,
    Slice,
    Softmax,
    Transpose,
    Value,
    Weight,
)
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Rewrite

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Order:
    """Describes the order of axes of a transposed tensor. Its axis i is axis `axes[i]` of the
    source, the tensor before the Transpose. The source has `rank` axes, and those not in `axes`
    have size 1."""

    axes: Axes
    rank: int

    @property
    def whole(self) -> Axes:
        """Return all axes of the tensor before the Transpose: first its axes of size 1 that the
        transposed tensor lacks, and then `axes`."""
        return (*(axis for axis in range(self.rank) if axis not in self.axes), *self.axes)

    @property
    def is_of_pixels(self) -> bool:
        """Return whether the tensor before the Transpose is C×H×W or C×D×H×W, and the transposed
        tensor has its channels last."""
        return self.axes[-1:] == (0,) and self.rank in (3, 4)

    def of_source(self, shape: Shape) -> Shape:
        """Return the shape of the tensor before the Transpose, given the shape of the transposed
        tensor."""
        return tuple(
            shape[self.axes.index(axis)] if axis in self.axes else 1 for axis in range(self.rank)
        )


_TOKENS = _Order((2, 0), 3)
"""The order of T×C as a view of C×1×T."""

_ROWS = {1: _TOKENS, 2: _Order((1, 2, 0), 3)}
"""The orders of T×C and of H×W×C (a view of C×H×W), by the number of axes before C."""


def sink_transpose(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that moves the Transpose before `node` to a position after `node`."""
    if isinstance(node, Transpose):
        return _one_transpose(view, node)
    if isinstance(node, Reshape):
        return _reshape(view, node)
    order, move = _order_read(view, node), _MOVES.get(type(node))
    if isinstance(node, Gemm) and order is None:
        return _as_matrix(view, node)
    if order is None or move is None:
        return None
    to = _Moving(view, node, order)
    moved = move(to, node)
    if moved is None:
        return None
    value = _source(view, node, order)
    nodes, values = _seen_again(view, value, order, node.output)
    return Rewrite(
        nodes=(*to.nodes, replace(moved, output=value.name), *nodes),
        values=(*to.values, value, *values),
        weights=to.weights,
    )


def _seen(view: GraphView, name: str) -> tuple[str, _Order] | None:
    """Return the input of the Transpose that computes this value, and the order of axes. Return
    None if no Transpose computes it."""
    node = view.producer(name)
    is_view = isinstance(node, Reshape) and not node.channels_last
    turn = view.producer(node.x) if isinstance(node, Reshape) and is_view else node
    if not isinstance(turn, Transpose):
        return None
    before, axes = view.shape(turn.x), turn.axes
    if turn is not node:
        axes = tuple(axis for axis in axes if before[axis] > 1)
        if view.shape(name) != tuple(before[axis] for axis in axes):
            return None
    return turn.x, _Order(axes, len(before))


def _source(view: GraphView, node: Node, order: _Order) -> Value:
    """Return a new value for the node's result, with its axes in the order before the Transpose."""
    name = view.fresh(f"{node.output}.untransposed")
    return Value(name, order.of_source(view.shape(node.output)))


def _seen_again(
    view: GraphView, value: Value, order: _Order, output: str
) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
    """Return nodes that compute `output` by transposing `value`, and the intermediate values that
    they need."""
    name = f"{value.name}.transposed"
    if len(order.axes) == order.rank:
        return (Transpose(name=name, output=output, x=value.name, axes=order.axes),), ()
    turned = Value(view.fresh(name), tuple(value.shape[axis] for axis in order.whole))
    nodes = (
        Transpose(name=name, output=turned.name, x=value.name, axes=order.whole),
        Reshape(name=f"{name}.squeezed", output=output, x=turned.name),
    )
    return nodes, (turned,)


def _one_transpose(view: GraphView, node: Transpose) -> Outcome:
    seen, shape = _seen(view, node.x), view.shape(node.x)
    if seen is not None:
        source, order = seen
        axes = tuple(order.axes[axis] for axis in node.axes)
        if len(axes) == order.rank:
            return Rewrite(nodes=(replace(node, x=source, axes=axes),))
        if axes == tuple(sorted(axes)):
            return Rewrite(nodes=(Reshape(name=node.name, output=node.output, x=source),))
    long = [axis for axis in node.axes if shape[axis] > 1]
    if long == sorted(long) and node.axes != tuple(range(len(shape))):
        return Rewrite(nodes=(Reshape(name=node.name, output=node.output, x=node.x),))
    before = view.producer(node.x)
    if node.axes == (1, 0) and isinstance(before, Reshape) and not before.channels_last:
        pixels = view.shape(before.x)
        if len(pixels) in (3, 4) and pixels[0] == shape[0]:  # pixels become tokens
            return _reshaped(view, node, before.x, _TOKENS)
    return None


def _reshape(view: GraphView, node: Reshape) -> Outcome:
    """Return a rewrite that moves a Reshape before the Transpose that it reads, if the Reshape
    keeps the channels last, or otherwise None."""
    turn, shape = view.producer(node.x), view.shape(node.output)
    if not isinstance(turn, Transpose) or node.channels_last:
        return None
    before, order = view.shape(turn.x), _ROWS.get(len(shape) - 1)
    channels_last = (*range(1, len(before)), 0)
    if order is None or len(before) not in (3, 4) or turn.axes != channels_last:
        return None
    if shape[-1] != before[0] or order.of_source(shape) == before:
        return None
    return _reshaped(view, node, turn.x, order)


def _reshaped(view: GraphView, node: Node, x: str, order: _Order) -> Rewrite:
    """Return the Rewrite that computes the node's output from x by a Reshape and a Transpose."""
    value = _source(view, node, order)
    nodes, values = _seen_again(view, value, order, node.output)
    first = Reshape(name=node.name, output=value.name, x=x)
    return Rewrite(nodes=(first, *nodes), values=(value, *values))


def _as_matrix(view: GraphView, node: Gemm) -> Outcome:
    """Return a rewrite that reshapes the input of a Gemm to a matrix, if the input has more axes
    than a Conv supports, or otherwise None."""
    *rows, c = view.shape(node.x)
    if prod(rows) == 1 or len(rows) in _ROWS:
        return None
    k = view.shape(node.output)[-1]
    x = Value(view.fresh(f"{node.output}.rows"), (prod(rows), c))
    y = Value(view.fresh(f"{node.output}.matrix"), (prod(rows), k))
    nodes = (
        Reshape(name=f"{node.name}.rows", output=x.name, x=node.x),
        replace(node, x=x.name, output=y.name),
        Reshape(name=f"{node.name}.matrix", output=node.output, x=y.name),
    )
    return Rewrite(nodes=nodes, values=(x, y))


def _order_read(view: GraphView, node: Node) -> _Order | None:
    """Return the order of axes of the node's operands, if the node can compute on the tensors
    before their Transposes, or otherwise None."""
    order = _order_seen(view, node)
    if not isinstance(node, Gemm) or (order is not None and order.is_of_pixels):
        return order
    *rows, _ = view.shape(node.x)
    return _ROWS.get(len(rows)) if prod(rows) > 1 else None


def _order_seen(view: GraphView, node: Node) -> _Order | None:
    """Return the order of axes that all transposed operands of the node share. Return None if their
    orders differ, or if another operand cannot be converted to this order."""
    found, others = set[_Order](), list[str]()
    for name in node.operands():
        if view.weight(name) is None:
            seen = _seen(view, name)
            if seen is None:
                others.append(name)
            else:
                found.add(seen[1])
    if len(found) != 1:
        return None
    (order,) = found
    return order if all(_can_follow(view, node, name, order) for name in others) else None


def _can_follow(view: GraphView, node: Node, name: str, order: _Order) -> bool:
    """Return whether the operand `name` of `node` can be converted to the axes before the
    Transposes, as `order` describes them. No Transpose computes this operand."""
    if len(view.shape(name)) != len(order.axes):
        return False
    if isinstance(view.producer(name), Constant):
        return True
    is_whole = view.shape(name) == view.shape(node.output)
    return isinstance(node, Binary) and is_whole and order.is_of_pixels


@dataclass
class _Moving:
    """Collects the nodes, values and weights that are added to move `node` before a Transpose."""

    view: GraphView
    node: Node
    order: _Order
    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)

    def operand(self, name: str) -> str:
        """Return the name of an operand with its axes in the order before the Transpose. Add nodes
        or weights if necessary."""
        if self.view.weight(name) is not None:
            return self.constant(name, "constant")
        seen, producer = _seen(self.view, name), self.view.producer(name)
        if seen is not None and seen[1] == self.order:
            return seen[0]
        shape = self.view.shape(name)
        if isinstance(producer, Constant):
            weight = self.constant(producer.weight, "constant")
            return self._add(Constant, "part", self.order.of_source(shape), weight=weight)
        whole = self.order.whole
        if len(shape) < len(whole):
            ahead = (1,) * (len(whole) - len(shape)) + shape
            name = self._add(Reshape, "rows", ahead, x=name)
        axes = tuple(whole.index(axis) for axis in range(len(whole)))
        for reader in self.view.readers(name):
            is_same = isinstance(reader, Transpose) and reader.axes == axes
            if is_same and self.view.precedes(reader, self.node):
                return reader.output
        return self._add(Transpose, "pixels", self.order.of_source(shape), x=name, axes=axes)

    def constant(self, name: str, role: str) -> str:
        """Add a copy of a constant with its axes in the order before the Transpose, and return its
        name."""
        weight, axes = weight_of(self.view, name), self.order.axes
        aligned = weight.reshape((1,) * (len(axes) - weight.ndim) + weight.shape)
        turned = aligned.transpose([axes.index(axis) for axis in sorted(axes)])
        made = self._fresh(role)
        self.weights[made] = turned.reshape(self.order.of_source(aligned.shape))
        return made

    def _add(self, kind: type[Node], role: str, shape: Shape, **fields: Any) -> str:
        """Add a node, and return the name of its output."""
        name = self._fresh(role)
        self.values.append(Value(name, shape))
        self.nodes.append(kind(name=name, output=name, **fields))
        return name

    def _fresh(self, role: str) -> str:
        stem = f"{self.node.output}.{role}"
        taken = {*self.weights, *(value.name for value in self.values)}
        names = chain([stem], (f"{stem}.{number}" for number in count(1)))
        return next(name for name in names if self.view.fresh(name) == name and name not in taken)


def _activate(to: _Moving, node: Activate) -> Node:
    return replace(node, x=to.operand(node.x))


def _along_axis(to: _Moving, node: Softmax | Slice) -> Node:
    return replace(node, x=to.operand(node.x), axis=to.order.axes[node.axis])


def _concat(to: _Moving, node: Concat) -> Node:
    parts = tuple(map(to.operand, node.parts))
    return replace(node, parts=parts, axis=to.order.axes[node.axis])


def _reduce(to: _Moving, node: Reduce) -> Node:
    along = {to.order.axes[axis] for axis in node.axes}
    if 0 not in along:  # axes of size 1 are reduced, too: maybe all pixels
        along |= set(range(to.order.rank)) - set(to.order.axes)
    return replace(node, x=to.operand(node.x), axes=tuple(sorted(along)))


def _normalise(to: _Moving, node: Normalise) -> Node | None:
    if node.groups != 1:
        return None
    return replace(
        node,
        x=to.operand(node.x),
        scale=to.constant(node.scale, "scale"),
        shift=to.constant(node.shift, "shift"),
        axes=tuple(sorted(to.order.axes[axis] for axis in node.axes)),
    )


def _binary(to: _Moving, node: Binary) -> Node | None:
    names = dict.fromkeys((node.a, node.b))
    values = [name for name in names if to.view.weight(name) is None]
    if any(len(to.view.shape(name)) != len(to.order.axes) for name in values):
        return None
    return node.renamed({name: to.operand(name) for name in names})


def _gemm(to: _Moving, node: Gemm) -> Node:
    """Return the 1×1 Conv that replaces a Gemm over the channels of each pixel."""
    c, *spatial = to.order.of_source(to.view.shape(node.x))
    filters, size = weight_of(to.view, node.weight), tuple(spatial)
    one, none = (1,) * len(size), (0,) * len(size)
    window = Window(size, one, one, one, none, none, size)
    weight = to.view.fresh(f"{node.output}.weight")
    to.weights[weight] = np.reshape(filters, (*filters.shape, *one))
    return Conv(
        name=node.name,
        output=node.output,
        x=to.operand(node.x),
        weight=weight,
        bias=node.bias,
        problem=ConvProblem(1, c, len(filters), window),
        activation=node.activation,
    )


_MOVES: dict[type[Node], Callable[..., Node | None]] = {
    Activate: _activate,
    Binary: _binary,
    Concat: _concat,
    Gemm: _gemm,
    Normalise: _normalise,
    Reduce: _reduce,
    Slice: _along_axis,
    Softmax: _along_axis,
}
