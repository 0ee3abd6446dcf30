"""Transposes sink behind what reads them, and end where one undoes them."""

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Softmax
from tests.support.models.graphs import GraphBuilder, kinds, rewritten


def test_a_gemm_along_the_channels_is_a_convolution() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.transpose("y", b.gemm("g", b.transpose("t", "x", 1, 2, 0), 7), 2, 0, 1)
    assert kinds(rewritten(b.build("y"))) == ["Conv"]


def test_a_gemm_along_another_axis_stays_behind_its_transpose() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.gemm("y", b.transpose("t", "x", 0, 2, 1), 7)
    assert kinds(rewritten(b.build("y"))) == ["Transpose", "Gemm"]


def test_every_reader_of_a_transposed_value_takes_it_over() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    last = b.transpose("t", "x", 1, 2, 0)
    left = b.activate("a", last, RELU)
    right = b.add(Softmax, "s", (4, 5, 6), x=last, axis=2)
    joined = b.concat("k", left, right, axis=2)
    b.transpose("y", b.binary("m", BinaryOp.MUL, joined, b.noise("w", (12,))), 2, 0, 1)
    assert "Transpose" not in kinds(rewritten(b.build("y"), rounds=True))


def test_values_transposed_in_different_ways_stay() -> None:
    b = GraphBuilder(x=(4, 4, 4))
    b.binary("y", BinaryOp.ADD, b.transpose("t", "x", 1, 2, 0), b.transpose("u", "x", 2, 0, 1))
    assert kinds(rewritten(b.build("y"))) == ["Transpose", "Transpose", "Binary"]


def test_a_transpose_of_axes_of_one_is_a_reshape() -> None:
    b = GraphBuilder(x=(6, 1, 1))
    b.transpose("y", "x", 1, 2, 0)
    assert kinds(rewritten(b.build("y"))) == ["Reshape"]
