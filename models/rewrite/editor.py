"""Applies rewrites to a graph in time proportional to the number of nodes that they touch."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from models.graph import Graph, Node, Value
from models.rewrite.rule import GraphView, Rewrite


@dataclass(frozen=True, slots=True)
class Change:
    """Records the nodes that a rewrite removed and inserted."""

    removed: tuple[Node, ...]
    inserted: tuple[Node, ...]


class Editor(GraphView):
    """Holds a graph while rewrites change it. Nodes whose results no node reads are removed at
    once, so that rules never see them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._name = graph.name
        self._drop_unread(self._nodes)

    def apply(self, node: Node, rewrite: Rewrite) -> Change:
        """Replace `node` by the nodes of `rewrite`, and return the removed and the inserted
        nodes."""
        for value in rewrite.values:
            self._set_value(value)
        self._weights.update(rewrite.weights)
        self._weights.update({name: grid.weight for name, grid in rewrite.grids.items()})
        self._grids.update(rewrite.grids)

        at = self._position_of[node.output]
        outputs = self._positions[at]
        index = outputs.index(node.output)
        removed = [node]
        self._unlink(node)
        outputs.remove(node.output)
        for new in rewrite.nodes:
            old = self._nodes.get(new.output)
            if old is None:
                outputs.insert(index, new.output)
                self._position_of[new.output] = at
                index += 1
            else:
                removed.append(old)
                self._unlink(old)
            self._link(new)
        for name, new_name in rewrite.rename.items():
            self._rename(name, new_name)
        removed += self._drop_unread(name for gone in removed for name in gone.operands())
        return Change(tuple(removed), rewrite.nodes)

    def graph(self) -> Graph:
        """Return the current graph, without values and weights that no node uses."""
        nodes = tuple(self.nodes())
        used = {*self.inputs, *self.outputs}
        for node in nodes:
            used.update((node.output, *node.operands()))
        for name in tuple(used & self._values.keys()):
            value = self._values[name]
            while value.inside is not None:
                value = self._values[value.inside.parent]
                used.add(value.name)
        return Graph(
            name=self._name,
            inputs=self.inputs,
            outputs=self.outputs,
            values={name: value for name, value in self._values.items() if name in used},
            nodes=nodes,
            weights={name: weight for name, weight in self._weights.items() if name in used},
            grids={name: grid for name, grid in self._grids.items() if name in used},
        )

    def _set_value(self, value: Value) -> None:
        before = self._values.get(value.name)
        if before is not None and before.inside is not None:
            self._pieces[before.inside.parent].remove(value.name)
        if value.inside is not None:
            self._pieces.setdefault(value.inside.parent, []).append(value.name)
        self._values[value.name] = value

    def _link(self, node: Node) -> None:
        self._nodes[node.output] = node
        for name in node.operands():
            self._readers.setdefault(name, []).append(node.output)

    def _unlink(self, node: Node) -> None:
        del self._nodes[node.output]
        for name in node.operands():
            self._readers[name].remove(node.output)

    def _rename(self, name: str, new_name: str) -> None:
        """Rename a value in all nodes that read it, and in the node that writes it, if any."""
        for reader in dict.fromkeys(self.readers(name)):
            self._unlink(reader)
            self._link(reader.renamed({name: new_name}))
        writer = self._nodes.get(name)
        if writer is not None:
            self._unlink(writer)
            self._link(replace(writer, output=new_name))
            at = self._position_of[new_name] = self._position_of.pop(name)
            outputs = self._positions[at]
            outputs[outputs.index(name)] = new_name

    def _drop_unread(self, names: Iterable[str]) -> list[Node]:
        """Remove nodes whose outputs no node reads, and return the removed nodes.

        The search begins with the nodes that write `names`, and continues with the inputs of
        removed nodes.
        """
        dropped = []
        pending = list(names)
        while pending:
            name = pending.pop()
            node = self._nodes.get(name)
            if node is None or self._readers.get(name) or name in self.outputs:
                continue
            if self._values[name].inside is not None:
                continue  # the readers of the enclosing value read it
            self._unlink(node)
            self._positions[self._position_of[name]].remove(name)
            dropped.append(node)
            pending += node.operands()
        return dropped
