"""Consecutive reductions along single axes become one."""

import pytest

from kernels.problems.reduction import ReduceKind
from models.graph import Reduce, Shape
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten


def reduce(b: GraphBuilder, y: str, x: str, *axes: int, kind: ReduceKind = ReduceKind.SUM) -> str:
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(b.shapes[x]))
    return b.add(Reduce, y, shape, x=x, kind=kind, axes=axes)


@pytest.mark.parametrize("kind", [ReduceKind.SUM, ReduceKind.MIN, ReduceKind.L2])
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (0, 2)])
def test_two_in_a_row_are_one(kind: ReduceKind, first: int, second: int) -> None:
    b = GraphBuilder(x=(6, 4, 5))
    reduce(b, "y", reduce(b, "r", "x", first, kind=kind), second, kind=kind)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Reduce)
    assert node.axes == tuple(sorted((first, second)))


@pytest.mark.parametrize(
    ("shape", "first", "between", "second"),
    [
        ((6, 4, 5), 2, (6, 4), 1),
        ((6, 4, 5), 1, (6, 5), 1),
        ((1, 4, 5), 1, (5,), 0),
        ((6, 1, 5), 0, (5,), 0),
    ],
)
def test_axes_of_size_1_that_are_dropped_between_do_not_hide_it(
    shape: Shape, first: int, between: Shape, second: int
) -> None:
    b = GraphBuilder(x=shape)
    reduce(b, "y", b.reshape("v", reduce(b, "r", "x", first), between), second)
    result = rewritten(b.build("y"))
    assert kinds(result).count("Reduce") == 1
    assert set(kinds(result)) <= {"Reduce", "Reshape"}


def test_reductions_of_two_kinds_stay() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    reduce(b, "y", reduce(b, "r", "x", 2), 1, kind=ReduceKind.MIN)
    assert kinds(rewritten(b.build("y"))) == ["Reduce", "Reduce"]


def test_a_reshape_that_cuts_an_axis_between_them_keeps_them_apart() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    reduce(b, "y", b.reshape("v", reduce(b, "r", "x", 2), (3, 2, 4)), 2)
    assert kinds(rewritten(b.build("y"))) == ["Reduce", "Reshape", "Reduce"]


def test_a_value_between_that_others_read_stays() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    reduce(b, "y", reduce(b, "r", "x", 2), 1)
    b.transpose("z", "r", 1, 0, 2)
    result = rewritten(b.build("y", "z"))
    assert kinds(result).count("Reduce") == 2
    assert refusals(result, "merge_reductions") == {"reduce_y": "r is also read by transpose_z"}
