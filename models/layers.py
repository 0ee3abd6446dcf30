"""Counts the layers of a quantized model that are computed on integers, and names the others."""

from dataclasses import dataclass

from typing_extensions import override

from models.graph import Conv, Gemm, Graph
from models.integers import is_quantized

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Layers:
    """Holds how many convolutions and fully connected layers are on integers, and the others'
    names."""

    on_integers: int
    in_float: tuple[str, ...]

    @override
    def __str__(self) -> str:
        count = self.on_integers + len(self.in_float)
        if not self.in_float:
            return f"{count} of {count} layers on integers"
        more = len(self.in_float) - _SHOWN
        names = ", ".join(self.in_float[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"{self.on_integers} of {count} layers on integers; in float: {names}"


def layers_of(graph: Graph) -> Layers:
    """Return the layers of a rewritten graph, as a GPU runs it."""
    layers = [node for node in graph.nodes if isinstance(node, Conv | Gemm)]
    floats = tuple(
        node.name for node in layers if not is_quantized(graph.values[node.output].stored)
    )
    return Layers(len(layers) - len(floats), floats)
