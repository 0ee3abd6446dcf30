"""Counts the layers of a quantized model that compute with integers, and names the other layers."""

from models.graph import Conv, Gemm, Graph
from models.quantized_filters import is_quantized
from models.served import Layers


def layers_of(graph: Graph) -> Layers:
    """Count the layers of a rewritten graph that a GPU computes with integers, and name the others.
    A layer is computed with integers if its output is quantized."""
    layers = [node for node in graph.nodes if isinstance(node, Conv | Gemm)]
    floats = tuple(
        node.name for node in layers if not is_quantized(graph.values[node.output].stored)
    )
    return Layers(len(layers) - len(floats), floats)
