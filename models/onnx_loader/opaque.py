"""Defines a graph node that represents a whole model, for models that no other nodes can
express."""

from dataclasses import dataclass

from models.graph import Node, operand


@dataclass(frozen=True, kw_only=True)
class Opaque(Node):
    """Represents a whole model that only ONNX Runtime can run."""

    x: str = operand()
    reason: str  # the reason why typed nodes cannot express it
    sums: tuple[int, ...]  # for each inner node, the terms that it sums per number
    halves: bool  # whether the inner nodes round to float16
