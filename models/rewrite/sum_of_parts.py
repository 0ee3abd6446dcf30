"""Adds the parts of a Concat or Reshape directly, so that they need not be concatenated first.

    Σ_i concat(x_0, ..., x_r)_i = Σ_i x_i,   Σ_i reshape(x: r·C → r×C)_i = Σ_i x[i·C : i·C + C]

The same is true of products: Σ_i (x · a)_i = Σ_i x_i · a_i. In ResNeSt and SKNet, a is the softmax
over the parts. The rule does not apply to more than 8 parts, because each part needs a kernel
launch.
"""

from dataclasses import dataclass, field
from math import prod

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.reduction import ReduceKind
from models.graph import Binary, Concat, Node, Reduce, Reshape, Shape, Slice, Value
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

_PARTS = 8


@dataclass
class _Made:
    """Collects the nodes and values that the rewrite adds."""

    view: GraphView
    stem: str
    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, kind: type[Node], shape: Shape, **fields: object) -> str:
        name = self.view.fresh(f"{self.stem}.{len(self.nodes)}")
        self.values.append(Value(name, shape))
        self.nodes.append(kind(name=name, output=name, **fields))
        return name


def sum_of_parts(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that adds the slices of a tensor along the first axis one by one, if `node`
    is the sum over this axis."""
    if not isinstance(node, Reduce) or node.kind is not ReduceKind.SUM or node.axes != (0,):
        return None
    shape = view.shape(node.x)
    made = _Made(view, node.output)
    parts = _parts(made, node.x, node)
    if parts is None:
        return None
    if len(parts) > _PARTS:
        return Refusal(f"{node.x} has {len(parts)} parts; at most {_PARTS} are added one by one")
    total = parts[0]
    for part in parts[1:]:
        total = made.add(Binary, shape[1:], a=total, b=part, op=BinaryOp.ADD)
    last = Reshape(name=node.name, output=node.output, x=total)
    return Rewrite(nodes=(*made.nodes, last), values=tuple(made.values))


def _parts(made: _Made, name: str, reader: Node) -> list[str] | None:
    """Return the slices of a value along axis 0, without that axis. Return None if this requires a
    copy."""
    view = made.view
    producer, shape = view.producer(name), view.shape(name)
    rest = shape[1:]
    if isinstance(producer, Concat) and producer.axis == 0:
        if any(view.shape(part)[0] != 1 for part in producer.parts):
            return None
        return [made.add(Reshape, rest, x=part) for part in producer.parts]
    if isinstance(producer, Reshape) and not producer.channels_last:
        source = view.shape(producer.x)
        if len(source) != len(rest) or source != (shape[0] * rest[0], *rest[1:]):
            return None
        return [
            made.add(Slice, rest, x=producer.x, axis=0, start=start, stop=start + rest[0])
            for start in range(0, source[0], rest[0])
        ]
    if isinstance(producer, Binary) and producer.op is BinaryOp.MUL and not producer.activation:
        if view.tie(name, reader):
            return None
        factors = [_factors(made, operand, producer) for operand in (producer.a, producer.b)]
        if any(factor is None for factor in factors):
            return None
        pairs = zip(*(factor for factor in factors if factor), strict=True)
        return [made.add(Binary, rest, a=a, b=b, op=BinaryOp.MUL) for a, b in pairs]
    return None


def _factors(made: _Made, name: str, product: Node) -> list[str] | None:
    """Return the slices of a factor along axis 0, without that axis. Return None if the factor
    cannot be sliced."""
    view, shape = made.view, made.view.shape(product.output)
    mine = view.shape(name)
    if view.weight(name) is not None or len(mine) != len(shape) or mine[0] != shape[0]:
        return None
    if prod(mine[2:]) > 1:
        return _parts(made, name, product)
    slices = [
        made.add(Slice, (1, *mine[1:]), x=name, axis=0, start=i, stop=i + 1)
        for i in range(shape[0])
    ]
    return [made.add(Reshape, mine[1:], x=part) for part in slices]
