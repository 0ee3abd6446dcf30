"""Defines the node for a whole model that typed nodes cannot express."""

from dataclasses import dataclass

from models.graph import Node, operand


@dataclass(frozen=True, kw_only=True)
class Opaque(Node):
    """Represents a whole model that only ONNX Runtime can run."""

    x: str = operand()
    reason: str  # why typed nodes cannot express it
    sums: tuple[int, ...]  # how many terms a number of each inner node's result sums
    halves: bool  # whether the inner nodes round to float16
