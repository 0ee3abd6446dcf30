"""Arithmetic with constants, one per channel, becomes a ScaleShift."""

from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from models.graph import Shape
from models.rewrite import rewrite
from tests.support.models.graphs import GraphBuilder, kinds, only_scale_shift, refusals, rewritten

SHAPE = (4, 6, 6)
CHANNELS = np.array([0.5, -1.0, 2.0, 1.5])


@pytest.mark.parametrize("shape", [(4, 1, 1), (), (1,), (1, 1, 1)])
@pytest.mark.parametrize(
    ("op", "weight_first", "scale", "shift"),
    [
        (BinaryOp.ADD, False, lambda w: 1 + 0 * w, lambda w: w),
        (BinaryOp.ADD, True, lambda w: 1 + 0 * w, lambda w: w),
        (BinaryOp.SUB, False, lambda w: 1 + 0 * w, lambda w: -w),
        (BinaryOp.SUB, True, lambda w: -1 + 0 * w, lambda w: w),
        (BinaryOp.MUL, False, lambda w: w, lambda w: 0 * w),
        (BinaryOp.MUL, True, lambda w: w, lambda w: 0 * w),
        (BinaryOp.DIV, False, lambda w: 1 / w, lambda w: 0 * w),
    ],
)
def test_arithmetic_with_constants_a_channel_is_a_scale_shift(
    op: BinaryOp, weight_first: bool, scale: Any, shift: Any, shape: Shape
) -> None:
    numbers = CHANNELS if shape[:1] == (4,) else CHANNELS[:1]
    b = GraphBuilder(x=SHAPE)
    w = b.weight("w", numbers.reshape(shape))
    b.binary("y", op, *((w, "x") if weight_first else ("x", w)))
    _, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    w4 = np.broadcast_to(numbers, 4)
    np.testing.assert_array_equal(s, scale(w4).astype(np.float32))
    np.testing.assert_array_equal(t, shift(w4).astype(np.float32))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (4, 6, 1), (4, 6, 6), (1, 6, 6)])
def test_constants_that_vary_within_a_channel_are_left_alone(shape: Shape) -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.MUL, "x", b.noise("w", shape))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Binary"]
    assert result.refused == ()


def test_constants_that_broaden_the_value_are_left_alone() -> None:
    b = GraphBuilder(x=(1, 6, 6))
    b.binary("y", BinaryOp.ADD, "x", b.noise("w", (4, 1, 1)))
    assert kinds(rewritten(b.build("y"))) == ["Binary"]


def test_a_constant_divided_by_a_value_is_left_alone() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.DIV, 1.0, b.activate("e", "x", Activation(ActivationKind.SIGMOID)))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Activate", "Binary"]
    assert result.refused == ()


def test_division_by_zero_is_refused() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.DIV, "x", b.weight("w", [[[1.0]], [[0.0]], [[2.0]], [[3.0]]]))
    result = rewrite(b.build("y"))
    assert kinds(result) == ["Binary"]
    assert refusals(result, "canonical_scale_shift") == {"binary_y": "w contains zero"}
