"""Defines reductions of a tensor along some of its axes."""

from enum import Enum, unique


@unique
class ReduceKind(Enum):
    """Names a function that reduces all elements along some axes to one element. The names are
    ONNX's."""

    SUM = "ReduceSum"
    MEAN = "ReduceMean"
    MAX = "ReduceMax"
    MIN = "ReduceMin"
    L2 = "ReduceL2"  # the square root of the sum of squares
