"""Sums are computed by the Conv that writes one of their operands."""

from typing import Any

import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Conv
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (8, 4, 4)
ADD = BinaryOp.ADD


@pytest.mark.parametrize("conv_first", [True, False])
def test_a_sum_with_an_earlier_value_ends_in_the_conv(conv_first: bool) -> None:
    b = GraphBuilder(x=SHAPE)
    c = b.conv("c", "x")
    b.activate("y", b.binary("s", ADD, *((c, "x") if conv_first else ("x", c))), RELU)
    (conv,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.output, conv.residual, conv.activation) == ("y", "x", RELU)


def test_a_conv_moves_behind_an_operand_that_is_computed_after_it() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.conv("d", "x", activation=RELU)
    b.binary("y", ADD, "c", "d")
    graph = rewritten(b.build("y")).graph
    assert [node.name for node in graph.nodes] == ["conv_d", "conv_c"]


@pytest.mark.parametrize("first", ["c", "d"])
def test_of_two_convs_the_later_takes_the_sum(first: str) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.conv("d", "x")
    b.binary("y", ADD, first, "d" if first == "c" else "c")
    early, late = rewritten(b.build("y")).graph.nodes
    assert (early.name, late.name) == ("conv_c", "conv_d")
    assert isinstance(late, Conv)
    assert late.residual == "c"


def test_of_two_convs_the_one_that_can_takes_the_sum() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.conv("d", "x", activation=RELU)
    b.binary("y", ADD, "c", "d")
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Conv"]
    assert result.refused == ()


def test_a_sum_of_three_ends_in_two_convs() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.conv("d", "x")
    b.binary("y", ADD, b.binary("s", ADD, "x", "c"), "d")
    assert kinds(rewritten(b.build("y"))) == ["Conv", "Conv"]


def test_a_sum_of_3d_convs_ends_in_one() -> None:
    b = GraphBuilder(x=(2, 3, 4, 4))
    b.binary("y", ADD, b.conv("c", "x", k=2), "x")
    assert kinds(rewritten(b.build("y"))) == ["Conv"]


@pytest.mark.parametrize(
    ("options", "outputs", "reason"),
    [
        ({"activation": RELU}, ("y",), "conv_c has the activation Relu"),
        ({"residual": "x"}, ("y",), "conv_c already adds x"),
        ({}, ("y", "c"), "c is an output of the network"),
        ({}, ("y", "t"), "c is also read by transpose_t"),
    ],
)
def test_why_a_sum_stays(options: dict[str, Any], outputs: tuple[str, ...], reason: str) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x", **options)
    b.transpose("t", "c", 0, 2, 1)
    b.binary("y", ADD, "c", "x")
    result = rewritten(b.build(*outputs))
    assert "Binary" in kinds(result)
    assert refusals(result, "fuse_residual") == {"binary_y": reason}


def test_twice_a_value_stays_a_sum() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", ADD, b.conv("c", "x"), "c")
    assert refusals(rewritten(b.build("y")), "fuse_residual") == {
        "binary_y": "binary_y reads c more than once"
    }


def test_a_sum_that_broadcasts_stays() -> None:
    b = GraphBuilder(x=SHAPE, z=(8, 1, 1))
    b.binary("y", ADD, b.conv("c", "x"), "z")
    assert refusals(rewritten(b.build("y")), "fuse_residual") == {
        "binary_y": "c and z differ in shape, so the sum broadcasts"
    }


def test_a_sum_with_a_constant_image_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", ADD, b.conv("c", "x"), b.noise("w", SHAPE))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Binary"]
    assert result.refused == ()


@pytest.mark.parametrize("op", [BinaryOp.SUB, BinaryOp.MUL])
def test_other_arithmetic_stays(op: BinaryOp) -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", op, b.conv("c", "x"), "x")
    assert kinds(rewritten(b.build("y"))) == ["Conv", "Binary"]
