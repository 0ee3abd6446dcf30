"""Normalisations that are written as arithmetic are recognised."""

from typing import Any

import pytest

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.reduction import ReduceKind
from models.graph import Normalise, Reduce
from tests.support.models.graphs import GraphBuilder, kinds, rewritten

SHAPE = (6, 4, 5)
SQRT = Activation(ActivationKind.SQRT)
ADD, SUB, MUL, DIV = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV
Axes = tuple[int, ...]


def mean(b: GraphBuilder, y: str, x: str, axes: Axes, kind: ReduceKind = ReduceKind.MEAN) -> str:
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(b.shapes[x]))
    return b.add(Reduce, y, shape, x=x, kind=kind, axes=axes)


def spelled_out(
    b: GraphBuilder,
    axes: Axes = (0,),
    *,
    squared: Axes | None = None,
    op: BinaryOp = DIV,
    kind: ReduceKind = ReduceKind.MEAN,
    other: str = "c",
    epsilon_first: bool = False,
) -> None:
    """Return y = c / sqrt(mean(c * other) + 0.1), c = x - mean(x), as PyTorch's exporter writes
    it."""
    c = b.binary("c", SUB, "x", mean(b, "m", "x", axes))
    squares = b.binary("q", MUL, c, other)
    variance = mean(b, "v", squares, squared or axes, kind)
    terms = (0.1, variance) if epsilon_first else (variance, 0.1)
    b.binary("y", op, c, b.activate("d", b.binary("e", ADD, *terms), SQRT))


@pytest.mark.parametrize("axes", [(0,), (2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("epsilon_first", [True, False])
def test_it_is_recognised(axes: Axes, epsilon_first: bool) -> None:
    b = GraphBuilder(x=SHAPE)
    spelled_out(b, axes, epsilon_first=epsilon_first)
    (node,) = rewritten(b.build("y"), rounds=True).graph.nodes
    assert isinstance(node, Normalise)
    assert node.axes == axes
    assert node.epsilon == pytest.approx(0.1)


def test_what_scales_and_shifts_it_is_folded() -> None:
    b = GraphBuilder(x=SHAPE)
    spelled_out(b)
    scaled = b.binary("s", MUL, "y", b.noise("g", (6, 1, 1)))
    b.binary("z", ADD, scaled, b.noise("h", (6, 1, 1)))
    assert kinds(rewritten(b.build("z"), rounds=True)) == ["Normalise"]


@pytest.mark.parametrize(
    "fields",
    [
        {"squared": (1,)},
        {"squared": (0, 1)},
        {"op": MUL},
        {"kind": ReduceKind.MAX},
        {"other": "x"},
    ],
    ids=["another axis", "more axes", "a product", "a maximum", "another square"],
)
def test_what_only_resembles_it_stays(fields: dict[str, Any]) -> None:
    b = GraphBuilder(x=SHAPE)
    spelled_out(b, **fields)
    assert "Normalise" not in kinds(rewritten(b.build("y"), rounds=True))


def test_a_difference_from_the_mean_of_another_value_stays() -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    c = b.binary("c", SUB, "x", mean(b, "m", "z", (0,)))
    variance = mean(b, "v", b.binary("q", MUL, c, c), (0,))
    b.binary("y", DIV, c, b.activate("d", b.binary("e", ADD, variance, 0.1), SQRT))
    assert "Normalise" not in kinds(rewritten(b.build("y"), rounds=True))


def test_inner_values_stay_for_their_other_readers() -> None:
    b = GraphBuilder(x=SHAPE)
    spelled_out(b)
    b.transpose("z", "m", 1, 0, 2)
    left = sorted(kinds(rewritten(b.build("y", "z"), rounds=True)))
    assert left == ["Normalise", "Reduce", "Reshape"]
