"""Defines a rewrite rule as a function of a graph and one of its nodes.

    rule(view, node) -> Rewrite    the replacement of the node
                      | Refusal    the node matches the rule, but a rewrite is wrong or useless
                      | None       the node does not match the rule

A rule only reads the graph. `editor.py` changes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from models.graph import Graph, Grid, Node, Shape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """Describes the replacement of a node. Nodes whose results are then unused are removed.

    If another node already writes the output of a node in `nodes`, the node in `nodes` replaces it.
    All other nodes in `nodes` take the position of the rewritten node. `rename` maps old names of
    values to new names, in all nodes that read or write them. `values`, `weights` and `grids`
    (quantized weights) are added, and replace entries of the same name. `caveats` give the reasons
    for inserted nodes.
    """

    nodes: tuple[Node, ...] = ()
    values: tuple[Value, ...] = ()
    weights: Mapping[str, Weight] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)  # by node name: the reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Gives the reason why a rule left a node unchanged, although the node matches the rule's
    pattern."""

    reason: str


Outcome: TypeAlias = Rewrite | Refusal | None


class GraphView:
    """Gives rules read access to a graph. It knows the node that writes each value, and the nodes
    that read it."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self._values = dict(graph.values)
        self._weights = dict(graph.weights)
        self._grids = dict(graph.grids)
        self._nodes: dict[str, Node] = {}  # by output
        self._readers: dict[str, list[str]] = {}  # outputs of the readers, one entry per read
        self._pieces: dict[str, list[str]] = {}  # by value: the values inside it
        # Each loaded node has a position, which its replacements share. Thus the order needs no
        # renumbering, and nodes compare by (position, index within it).
        self._positions: list[list[str]] = []
        self._position_of: dict[str, int] = {}
        for value in graph.values.values():
            if value.inside is not None:
                self._pieces.setdefault(value.inside.parent, []).append(value.name)
        for position, node in enumerate(graph.nodes):
            self._nodes[node.output] = node
            self._positions.append([node.output])
            self._position_of[node.output] = position
            for name in node.operands():
                self._readers.setdefault(name, []).append(node.output)

    def nodes(self) -> Iterator[Node]:
        """Yield every node in order. If a node is replaced during the iteration, yield its
        replacement."""
        for outputs in self._positions:
            for output in tuple(outputs):
                if output in self._nodes:
                    yield self._nodes[output]

    def producer(self, name: str) -> Node | None:
        """Return the node that writes a value.

        The result is None for a network input, a weight, or a value that several nodes write in
        slices.
        """
        return self._nodes.get(name)

    def readers(self, name: str) -> tuple[Node, ...]:
        """Return the nodes that read a value or weight. A node that reads it twice is returned
        twice."""
        return tuple(self._nodes[output] for output in self._readers.get(name, ()))

    def value(self, name: str) -> Value:
        """Return the value of that name."""
        return self._values[name]

    def weight(self, name: str) -> Weight | None:
        """Return the weight of that name, or None if the name belongs to a value."""
        return self._weights.get(name)

    def grid(self, name: str) -> Grid | None:
        """Return the integers and scales of a quantized weight, or None if the weight is not
        quantized."""
        return self._grids.get(name)

    def shape(self, name: str) -> Shape:
        """Return the shape of a value (of one image) or of a weight."""
        value = self._values.get(name)
        return value.shape if value is not None else tuple(self._weights[name].shape)

    def pieces(self, name: str) -> tuple[str, ...]:
        """Return the values that are stored as slices of this value, in the order of their
        channels."""

        def offset(piece: str) -> int:
            inside = self._values[piece].inside
            return inside.offset if inside is not None else 0

        return tuple(sorted(self._pieces.get(name, ()), key=offset))

    def precedes(self, first: Node, second: Node) -> bool:
        """Return whether `first` runs before `second`."""
        return self._position(first) < self._position(second)

    def fresh(self, stem: str) -> str:
        """Return an unused name for a value or weight: `stem`, or `stem` and a number if `stem` is
        in use."""
        name, count = stem, 1
        while name in self._values or name in self._weights:
            name, count = f"{stem}.{count}", count + 1
        return name

    def tie(self, name: str, reader: Node) -> str | None:
        """Return the reason why the value `name` cannot be fused into the node `reader`, or None.
        It must then be stored in memory."""
        if name in self.outputs:
            return f"{name} is an output of the network"
        inside = self._values[name].inside
        if inside is not None:
            return f"{name} is stored in {inside.parent}"
        others = [node.name for node in self.readers(name) if node.output != reader.output]
        if others:
            return f"{name} is also read by {listed(others)}"
        if len(self._readers[name]) > 1:
            return f"{reader.name} reads {name} more than once"
        return None

    def _position(self, node: Node) -> tuple[int, int]:
        position = self._position_of[node.output]
        return position, self._positions[position].index(node.output)


class Rule(Protocol):
    """Describes the type of a rewrite rule. Its `__name__` is the rule's name in reports."""

    __name__: str

    def __call__(self, view: GraphView, node: Node, /) -> Outcome:
        """Return the replacement of `node`, a Refusal, or None if the node does not match the
        rule."""


def listed(names: Iterable[str]) -> str:
    """Join the distinct names for a message, such as "a, b and c"."""
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last
