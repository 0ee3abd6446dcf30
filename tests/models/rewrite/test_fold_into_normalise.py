"""Operators that scale and shift a normalised value are folded into the normalisation."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Normalise
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten


def normalised(b: GraphBuilder, **fields: object) -> str:
    scale, shift = b.noise("g", (6, 1, 1)), b.noise("h", (6, 1, 1))
    return b.add(
        Normalise, "n", (6, 4, 5), x="x", scale=scale, shift=shift, axes=(0,), epsilon=0.1, **fields
    )


@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV])
@pytest.mark.parametrize("shape", [(), (6, 1, 1)], ids=str)
def test_arithmetic_by_a_constant_is_folded(op: BinaryOp, shape: tuple[int, ...]) -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.binary("y", op, normalised(b), b.noise("w", shape, 0.5, 1.5))
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Normalise"]


def test_a_scale_shift_and_its_activation_are_folded() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.scale_shift("y", normalised(b), RELU)
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Normalise"]


def test_what_follows_an_activation_is_not() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.scale_shift("y", normalised(b, activation=RELU))
    result = rewritten(b.build("y"), rounds=True)
    assert kinds(result) == ["Normalise", "ScaleShift"]
    assert refusals(result, "fold_into_normalise") == {
        "scaleshift_y": "normalise_n has the activation Relu"
    }


def test_a_value_that_others_read_stays() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.activate("z", normalised(b), RELU)
    b.scale_shift("y", "n")
    result = rewritten(b.build("y", "z"), rounds=True)
    assert "scaleshift_y" in refusals(result, "fold_into_normalise")


def test_a_number_an_element_stays() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.binary("y", BinaryOp.MUL, normalised(b), b.noise("w", (6, 4, 5)))
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Normalise", "Binary"]
