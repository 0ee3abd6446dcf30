"""Operands that broadcast are not expanded first."""

import pytest

from kernels.problems.binary_operation import BinaryOp
from models.graph import Expand, Shape
from tests.support.models.graphs import GraphBuilder, kinds, rewritten

SHAPE = (6, 4, 5)


def expanded(b: GraphBuilder, x: str, shape: Shape = SHAPE) -> str:
    return b.add(Expand, f"{x}.wide", shape, x=x)


@pytest.mark.parametrize("small", [(6, 1, 1), (1, 4, 5), (6, 1, 5)], ids=str)
@pytest.mark.parametrize("op", [BinaryOp.MUL, BinaryOp.SUB])
@pytest.mark.parametrize("first", [True, False])
def test_an_operand_beside_one_of_the_outputs_shape(
    small: Shape, op: BinaryOp, first: bool
) -> None:
    b = GraphBuilder(x=SHAPE, s=small)
    operands = (expanded(b, "s"), "x") if first else ("x", expanded(b, "s"))
    b.binary("y", op, *operands)
    assert kinds(rewritten(b.build("y"))) == ["Binary"]


def test_operands_that_only_together_have_the_outputs_shape() -> None:
    b = GraphBuilder(c=(6, 1, 1), s=(1, 4, 5))
    b.binary("y", BinaryOp.MUL, expanded(b, "c"), expanded(b, "s"))
    assert kinds(rewritten(b.build("y"))) == ["Binary"]


def test_what_gives_the_output_its_shape_stays() -> None:
    b = GraphBuilder(s=(6, 1, 1))
    b.binary("y", BinaryOp.MUL, expanded(b, "s"), b.noise("w", (6, 1, 1)))
    assert kinds(rewritten(b.build("y"), rounds=True))[0] == "Expand"


def test_a_product_of_an_expanded_value_with_itself_stays() -> None:
    b = GraphBuilder(s=(6, 1, 1))
    wide = expanded(b, "s")
    b.binary("y", BinaryOp.MUL, wide, wide)
    assert kinds(rewritten(b.build("y"))) == ["Expand", "Binary"]


def test_an_expanded_value_stays_for_other_readers() -> None:
    b = GraphBuilder(x=SHAPE, s=(6, 1, 1))
    wide = expanded(b, "s")
    b.binary("y", BinaryOp.MUL, "x", wide)
    b.transpose("z", wide, 0, 2, 1)
    assert sorted(kinds(rewritten(b.build("y", "z")))) == ["Binary", "Expand", "Transpose"]
