"""Builds small graphs of quantized values, and compares them with their rewritten form."""

from dataclasses import replace
from typing import Any

import numpy as np

from kernels.problems.precision import BYTE, Storage
from models.graph import Conv, Dequantize, Graph, Grid, Node, Quantize
from models.rewrite import RULES_OF_INTEGERS, RewriteResult, rewrite
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference

FINE = replace(BYTE, scale=0.02, zero_point=128)
COARSE = replace(BYTE, scale=0.05, zero_point=3)


class ByteBuilder:
    """Builds graphs of nodes that read and write bytes. Keeps the storage of each Quantize until
    the graph is built."""

    def __init__(self) -> None:
        self.b = GraphBuilder(0, x=(8, 6, 6))
        self.stored: dict[str, Storage] = {}
        self.grids: dict[str, Grid] = {}

    def quantize(self, output: str, x: str, stored: Storage = FINE) -> str:
        self.stored[output] = stored
        return self.b.add(Quantize, output, self.b.shapes[x], x=x)

    def dequantize(self, x: str) -> str:
        return self.b.add(Dequantize, f"{x}'", self.b.shapes[x], x=x)

    def conv(self, output: str, x: str, k: int = 8, **options: Any) -> str:
        made = self.b.conv(output, x, k, 1, **options)
        node = self.b.nodes[-1]
        assert isinstance(node, Conv)
        self.to_grid(node.weight)
        return made

    def to_grid(self, weight: str, most: int = 127) -> None:
        shape = self.b.weights[weight].shape
        numbers = np.random.default_rng(1).integers(-most, most + 1, shape).astype(np.int32)
        numbers.flat[0] = most
        self.grids[weight] = Grid(numbers, np.array([0.001], np.float32))
        self.b.weights[weight] = self.grids[weight].weight

    def build(self, output: str) -> Graph:
        graph = self.b.build(output)
        values = {
            name: replace(value, stored=self.stored.get(name, value.stored))
            for name, value in graph.values.items()
        }
        return replace(graph, values=values, grids=self.grids)


def rewritten_bytes(graph: Graph) -> RewriteResult:
    """Rewrite the graph, and check with the reference that the result computes the same bytes.
    Bytes at a rounding border may differ."""
    result = rewrite(graph, RULES_OF_INTEGERS)
    x = np.random.default_rng(3).normal(size=(2, 8, 6, 6))
    before, after = (
        run_reference(each, {"x": x})[each.outputs[0]] for each in (graph, result.graph)
    )
    assert np.abs(before - after).max() < 1e-9
    return result


def of_bytes(result: RewriteResult) -> list[Node]:
    """Return the nodes of the rewritten graph that write bytes."""
    graph = result.graph
    return [node for node in graph.nodes if graph.values[node.output].stored.dtype == BYTE.dtype]


def reasons(result: RewriteResult) -> str:
    """Return the reasons of all refusals of rules, as one text."""
    return "; ".join(refusal.reason for refusal in result.refused)
