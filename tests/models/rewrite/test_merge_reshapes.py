"""Successive Reshapes become one."""

import pytest

from models.graph import Reshape
from models.rewrite.merge_reshapes import merge_reshapes
from tests.support.models.graphs import GraphBuilder, kinds, rewritten


def test_several_in_a_row_are_one() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.reshape("y", b.reshape("s", b.reshape("r", "x", (24, 5)), (2, 60)), (5, 24))
    (node,) = rewritten(b.build("y"), rules=(merge_reshapes,)).graph.nodes
    assert isinstance(node, Reshape)
    assert (node.x, node.output) == ("x", "y")


def test_a_shape_that_others_read_is_kept_for_them() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.reshape("y", b.reshape("r", "x", (24, 5)), (5, 24))
    b.reshape("z", "r", (120,))
    nodes = rewritten(b.build("y", "z", "r"), rules=(merge_reshapes,)).graph.nodes
    assert {node.output: [*node.operands()] for node in nodes} == {
        "r": ["x"],
        "y": ["x"],
        "z": ["x"],
    }


@pytest.mark.parametrize("first", [True, False])
def test_a_reshape_with_channels_last_takes_another_order(first: bool) -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.add(Reshape, "r", (6, 20), x="x", channels_last=first)
    b.add(Reshape, "y", (20, 6), x="r", channels_last=not first)
    assert kinds(rewritten(b.build("y"), rules=(merge_reshapes,))) == ["Reshape", "Reshape"]
