"""Lists the elementwise operations of two operands."""

from enum import Enum, unique


@unique
class BinaryOp(Enum):
    """Names an elementwise operation of two operands. The names are ONNX's."""

    ADD = "Add"
    SUB = "Sub"
    MUL = "Mul"
    DIV = "Div"
    MAX = "Max"
    MIN = "Min"
    PRELU = "PRelu"  # a if a >= 0 else a * b
