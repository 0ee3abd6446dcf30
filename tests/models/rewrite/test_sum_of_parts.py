"""A sum over joined or split parts adds the parts."""

from collections import Counter

import pytest

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.reduction import ReduceKind
from models.graph import Reduce, Shape, Softmax
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

MUL = BinaryOp.MUL


def total(b: GraphBuilder, parts: str, *axes: int, kind: ReduceKind = ReduceKind.SUM) -> str:
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(b.shapes[parts]))
    return b.add(Reduce, "y", shape, x=parts, kind=kind, axes=axes)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_that_channels_were_cut_into(parts: int) -> None:
    b = GraphBuilder(x=(parts * 3, 4, 5))
    total(b, b.reshape("p", "x", (parts, 3, 4, 5)), 0)
    counts = Counter(kinds(rewritten(b.build("y"))))
    assert counts == {"Slice": parts, "Binary": parts - 1, "Reshape": 1}


def test_parts_that_were_joined() -> None:
    b = GraphBuilder(u=(3, 4, 5), v=(3, 4, 5))
    parts = [b.reshape(f"{name}.1", name, (1, 3, 4, 5)) for name in ("u", "v")]
    total(b, b.concat("p", *parts), 0)
    counts = Counter(kinds(rewritten(b.build("y"))))
    assert counts["Binary"] == 1
    assert not counts["Concat"] + counts["Reduce"]


def test_parts_times_a_number_a_part_and_channel() -> None:
    b = GraphBuilder(x=(6, 4, 5), a=(2, 3))
    attention = b.reshape("s", b.add(Softmax, "t", (2, 3), x="a", axis=0), (2, 3, 1, 1))
    total(b, b.binary("m", MUL, b.reshape("p", "x", (2, 3, 4, 5)), attention), 0)
    counts = Counter(kinds(rewritten(b.build("y"))))
    assert counts["Binary"] == 3  # a product a part, and their sum
    assert counts["Reduce"] == 0


def test_more_than_8_parts_stay() -> None:
    b = GraphBuilder(x=(9 * 2, 4, 5))
    total(b, b.reshape("p", "x", (9, 2, 4, 5)), 0)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Reshape", "Reduce"]
    reason = "p has 9 parts; at most 8 are added one by one"
    assert refusals(result, "sum_of_parts") == {"reduce_y": reason}


@pytest.mark.parametrize(
    ("axes", "kind"), [((1,), ReduceKind.SUM), ((0, 1), ReduceKind.SUM), ((0,), ReduceKind.MAX)]
)
def test_other_reductions_of_parts_stay(axes: tuple[int, ...], kind: ReduceKind) -> None:
    b = GraphBuilder(x=(6, 4, 5))
    total(b, b.reshape("p", "x", (2, 3, 4, 5)), *axes, kind=kind)
    assert kinds(rewritten(b.build("y"))) == ["Reshape", "Reduce"]


def test_parts_of_several_numbers_each_stay_joined() -> None:
    b = GraphBuilder(u=(2, 4, 5), v=(2, 4, 5))
    total(b, b.concat("p", "u", "v"), 0)
    assert "Reduce" in kinds(rewritten(b.build("y")))


@pytest.mark.parametrize("shape", [(2, 12, 5), (2, 3, 5, 4)], ids=str)
def test_a_reshape_that_cuts_more_than_the_channels_stays(shape: Shape) -> None:
    b = GraphBuilder(x=(6, 4, 5))
    total(b, b.reshape("p", "x", shape), 0)
    assert kinds(rewritten(b.build("y"))) == ["Reshape", "Reduce"]


def test_a_product_that_others_read_stays() -> None:
    b = GraphBuilder(x=(6, 4, 5), a=(2, 3, 1, 1))
    product = b.binary("m", MUL, b.reshape("p", "x", (2, 3, 4, 5)), "a")
    total(b, product, 0)
    b.transpose("z", product, 1, 0, 2, 3)
    assert "Reduce" in kinds(rewritten(b.build("y", "z")))
