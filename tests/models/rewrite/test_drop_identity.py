"""Nodes that change nothing are removed, and the network's outputs keep their names."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.pool import PoolKind
from models.graph import ChannelShuffle
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (8, 4, 4)


def no_op(b: GraphBuilder, kind: str) -> str:
    """A builder that adds a node that copies "c" to "i"."""
    match kind:
        case "identity":
            return b.identity("i", "c")
        case "reshape":
            return b.reshape("i", "c", SHAPE)
        case "two reshapes":
            return b.reshape("i", b.reshape("flat", "c", (8, 16)), SHAPE)
        case "transpose":
            return b.transpose("i", "c", 0, 1, 2)
        case "pad":
            return b.pad("i", "c", (0, 0, 0), (0, 0, 0), 7.0)
        case "slice":
            return b.slice("i", "c", 0, 8)
        case "pool":
            return b.pool("i", "c", PoolKind.AVERAGE, 1)
        case "concat":
            return b.concat("i", "c")
        case "slices joined again":
            return b.concat("i", b.slice("low", "c", 0, 3), b.slice("high", "c", 3, 8))
        case "shuffle":
            return b.add(ChannelShuffle, "i", SHAPE, x="c", groups=8)
        case "relu of relu":
            return b.activate("i", "c", RELU)
    raise AssertionError(kind)


NO_OPS = (
    "identity",
    "reshape",
    "two reshapes",
    "transpose",
    "pad",
    "slice",
    "pool",
    "concat",
    "slices joined again",
    "shuffle",
    "relu of relu",
)


@pytest.mark.parametrize("kind", NO_OPS)
def test_between_nodes_it_goes(kind: str) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x", activation=RELU)
    b.conv("y", no_op(b, kind))
    assert kinds(rewritten(b.build("y"))) == ["Conv", "Conv"]


@pytest.mark.parametrize("kind", NO_OPS)
def test_before_an_output_the_writer_takes_the_outputs_name(kind: str) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x", activation=RELU)
    b.conv("d", "c")
    no_op(b, kind)
    graph = rewritten(b.build("d", "i")).graph
    assert {node.output for node in graph.nodes} == {"d", "i"}
    assert "c" not in graph.values


def test_an_output_that_copies_an_input_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.identity("y", "x")
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Identity"]
    assert refusals(result, "drop_identity") == {
        "identity_y": "y is an output of the network, and x is an input"
    }


def test_an_output_that_copies_another_output_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.identity("y", b.conv("c", "x"))
    result = rewritten(b.build("c", "y"))
    assert kinds(result) == ["Conv", "Identity"]
    assert refusals(result, "drop_identity") == {
        "identity_y": "y is an output of the network, and c is an output as well"
    }


def test_an_output_that_copies_a_part_of_a_concat_takes_it_over() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.identity("y", "c")
    b.conv("z", b.concat("k", b.conv("d", "x"), "c"))
    result = rewritten(b.build("y", "z"))
    assert result.graph.values["y"].inside is None
    assert "Identity" in kinds(result)  # the copy of y into k
    assert refusals(result, "concat_in_place") == {
        "concat_k.1": "y is copied: it is an output of the network"
    }


def test_what_changes_something_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.transpose("a", "x", 0, 2, 1)
    b.slice("s", "a", 0, 4)
    b.activate("y", "s", RELU)
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Activate", "Transpose"]
