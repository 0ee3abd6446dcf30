"""Fuses attention into one node: the product of queries and keys, the softmax, and the product with
the values.

    softmax(s · q · kᵀ + b) · v = attention(q, k, v)      s a number, b a constant
    vᵀ · softmax(q · kᵀ)ᵀ = (softmax(q · kᵀ) · v)ᵀ        if channels come before tokens

s is the product of all numbers by which queries, keys or scores are multiplied. b is the sum of all
constants that are added to the scores. The rule does not apply if other nodes read the scores, if
the softmax is not along the keys, or if there are more keys or channels than a thread block of the
kernel supports.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kernels.operations.attention import MOST_DEPTH, MOST_KEYS
from kernels.problems.binary_operation import BinaryOp
from models.graph import (
    Attention,
    Binary,
    Node,
    Product,
    Reshape,
    ScaleShift,
    Shape,
    Softmax,
    Transpose,
    Value,
)
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

_SCALES = (BinaryOp.MUL, BinaryOp.DIV)


def fuse_attention(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that replaces a whole attention by one node, if `node` is the attention's
    last product: the softmax times the values."""
    if not isinstance(node, Product):
        return None
    shares, values, turned = node.a, node.b, False
    if not isinstance(view.producer(shares), Softmax):
        turn = view.producer(node.b)
        if not _turns(view, turn) or not isinstance(turn, Transpose):
            return None
        shares, values, turned = turn.x, node.a, True
        if isinstance(view.producer(shares), Softmax) and (tie := view.tie(node.b, node)):
            return Refusal(tie)
    softmax = view.producer(shares)
    if not isinstance(softmax, Softmax):
        return None
    shape = view.shape(shares)
    if softmax.log or softmax.axis != len(shape) - 1:
        return Refusal(f"{softmax.name} is not a softmax along the keys")
    if tie := view.tie(shares, view.readers(shares)[0]):
        return Refusal(tie)
    found = _scores(view, softmax)
    if isinstance(found, Refusal):
        return found
    made = _Made(view, node.output)
    q = made.unscaled(found.product.a, found)
    k = made.turned(made.unscaled(found.product.b, found))
    v = made.turned(values) if turned else values
    keys, depth = made.shape(k)[-2:]
    if keys > MOST_KEYS or depth > MOST_DEPTH:
        return Refusal(
            f"it has {keys} keys of {depth} channels; at most {MOST_KEYS} keys of {MOST_DEPTH}"
            " channels are supported"
        )
    if len({len(made.shape(name)) for name in (q, k, v, node.output)}) > 1 or any(
        view.weight(name) is not None for name in (q, k, v)
    ):
        return Refusal("its operands are constants, or differ in their number of axes")
    attention = Attention(
        name=node.name,
        output=node.output,
        q=q,
        k=k,
        v=v,
        scale=found.scale,
        bias=made.bias(found, (*view.shape(node.output)[:-2], *shape[-2:])),
    )
    if turned:
        name = made.value("tokens", _swapped(view.shape(node.output)))
        made.nodes += [
            replace(attention, output=name),
            Transpose(name=f"{name}.turned", output=node.output, x=name, axes=_swap(len(shape))),
        ]
    else:
        made.nodes.append(attention)
    return Rewrite(nodes=tuple(made.nodes), values=tuple(made.values), weights=made.weights)


@dataclass
class _Scores:
    """Describes an attention's scores: the product of queries and keys, a factor, and constants to
    add."""

    product: Product
    scale: float = 1.0
    biases: list[NDArray[np.float64]] = field(default_factory=list)  # each in the product's shape


def _scores(view: GraphView, softmax: Softmax) -> _Scores | Refusal:
    """Return the product of queries and keys from which the softmax's input is computed, with its
    factor and constants. Return a Refusal if the input is computed in another way."""
    name, scale = softmax.x, 1.0
    biases: list[tuple[NDArray[np.float64], Shape]] = []
    node: Node = softmax
    while not isinstance(writer := view.producer(name), Product):
        if tie := view.tie(name, node):
            return Refusal(tie)
        number = _number(view, writer)
        constant = _constant(view, writer)
        if number is not None:
            scale *= number[1]
            name = number[0]
        elif constant is not None:
            biases.append((constant[1] * scale, view.shape(name)))
            name = constant[0]
        elif isinstance(writer, Reshape) and _squeezed(view, writer.x) == _squeezed(view, name):
            name = writer.x
        else:
            return Refusal(f"{softmax.name} does not read a product of queries and keys")
        node = writer if writer is not None else node
    if tie := view.tie(name, node):
        return Refusal(tie)
    shape = view.shape(name)
    aligned = [np.broadcast_to(bias, at).reshape(shape) for bias, at in biases]
    return _Scores(writer, scale, aligned)


def _squeezed(view: GraphView, name: str) -> tuple[int, ...]:
    return tuple(size for size in view.shape(name) if size > 1)


def _number(view: GraphView, node: Node | None) -> tuple[str, float] | None:
    """Return the tensor and the number that a node multiplies, or None for another kind of node."""
    if isinstance(node, Binary) and node.op in _SCALES and node.activation is None:
        for x, other in ((node.a, node.b), (node.b, node.a)):
            weight = view.weight(other)
            if weight is None or view.weight(x) is not None or weight.size != 1:
                continue
            number = float(weight.item())
            if node.op is BinaryOp.MUL:
                return x, number
            if other == node.b and number:
                return x, 1 / number
    if isinstance(node, ScaleShift) and node.activation is None:
        scale, shift = view.weight(node.scale), view.weight(node.shift)
        if scale is not None and shift is not None and not shift.any() and np.ptp(scale) == 0:
            return node.x, float(scale.flat[0])
    return None


def _constant(view: GraphView, node: Node | None) -> tuple[str, NDArray[np.float64]] | None:
    """Return the tensor and the constant that a node adds, or None for another kind of node."""
    if isinstance(node, Binary) and node.op is BinaryOp.ADD and node.activation is None:
        for x, other in ((node.a, node.b), (node.b, node.a)):
            weight = view.weight(other)
            if weight is not None and view.weight(x) is None:
                return x, weight.astype(np.float64)
    return None


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _turns(view: GraphView, node: Node | None) -> bool:
    """Return whether a node is a Transpose that swaps the last two axes."""
    return isinstance(node, Transpose) and node.axes == _swap(len(view.shape(node.x)))


class _Made:
    """Collects the nodes, values and weights that the rewrite adds. Their names begin with
    `output`."""

    def __init__(self, view: GraphView, output: str) -> None:
        self.view, self.output = view, output
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.weights: dict[str, NDArray[np.float32]] = {}

    def shape(self, name: str) -> Shape:
        """Return the shape of a value, which is in the graph or was added by this rewrite."""
        added = {value.name: value.shape for value in self.values}
        return added.get(name) or self.view.shape(name)

    def value(self, role: str, shape: Shape) -> str:
        """Add a value of this shape, and return its name."""
        taken = {value.name for value in self.values}
        stem = self.view.fresh(f"{self.output}.{role}")
        name = next(free for free in _numbered(stem) if free not in taken)
        self.values.append(Value(name, shape))
        return name

    def turned(self, name: str) -> str:
        """Return the name of this value with its last two axes swapped. Add a Transpose if
        necessary.

        If this value is itself the result of such a Transpose, the result is the Transpose's input.
        """
        for node in (*self.nodes, self.view.producer(name)):
            if (
                isinstance(node, Transpose)
                and node.output == name
                and node.axes == _swap(len(node.axes))
            ):
                if node in self.nodes:
                    self.nodes.remove(node)
                return node.x
        shape = self.shape(name)
        new = self.value("turned", _swapped(shape))
        self.nodes.append(Transpose(name=new, output=new, x=name, axes=_swap(len(shape))))
        return new

    def unscaled(self, name: str, found: _Scores) -> str:
        """Return a query or key tensor without its multiplications by numbers. Multiply the scale
        of `found` by these numbers instead."""
        writer = self.view.producer(name)
        if (number := _number(self.view, writer)) is not None:
            found.scale *= number[1]
            return self.unscaled(number[0], found)
        if isinstance(writer, Transpose):
            before = self.unscaled(writer.x, found)
            if before == writer.x:
                return name
            new = self.value("unscaled", self.view.shape(name))
            self.nodes.append(Transpose(name=new, output=new, x=before, axes=writer.axes))
            return new
        return name

    def bias(self, found: _Scores, shape: Shape) -> str | None:
        """Add a weight with the sum of all constants, and return its name, or None if there are
        none. An axis along which the sum does not change gets size 1."""
        if not found.biases:
            return None
        total = np.broadcast_to(sum(found.biases[1:], found.biases[0]), shape)
        for axis in range(len(shape) - 2):
            first = total.take([0], axis)
            if (total == first).all():
                total = first
        name = self.view.fresh(f"{self.output}.bias")
        self.weights[name] = np.ascontiguousarray(total, np.float32)
        return name


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}.{number}" for number in range(1, 1_000))
