"""The invariants of graphs, and the nodes' declarations of their operands."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import (
    Activate,
    Binary,
    ChannelSlice,
    Concat,
    Constant,
    Conv,
    Graph,
    GraphError,
    Identity,
    Node,
    Shape,
    Slice,
    Value,
)
from tests.support.kernels.windows import conv_problem, window

SHAPE = (4, 3, 3)


def values(**shapes: Shape) -> dict[str, Value]:
    return {name: Value(name, shape) for name, shape in shapes.items()}


def relu(x: str, output: str) -> Node:
    return Activate(name=f"relu_{output}", x=x, output=output, activation=RELU)


def graph(
    nodes: tuple[Node, ...],
    known: dict[str, Value],
    outputs: tuple[str, ...] = ("y",),
) -> Graph:
    return Graph("test", ("x",), outputs, known, nodes, {"w": np.ones(SHAPE, np.float32)})


CHAIN = values(x=SHAPE, h=SHAPE, y=SHAPE)


def test_a_chain_in_order_is_a_graph() -> None:
    chain = graph((relu("x", "h"), relu("h", "y")), CHAIN)
    assert chain.shape("h") == SHAPE
    assert chain.shape("w") == SHAPE


def test_a_graph_goes_to_another_process_as_it_is() -> None:
    chain = graph((relu("x", "h"), relu("h", "y")), CHAIN)
    there = pickle.loads(pickle.dumps(chain, 5))
    assert (there.values, there.nodes, there.outputs) == (chain.values, chain.nodes, ("y",))
    assert np.array_equal(there.weights["w"], chain.weights["w"])
    with pytest.raises(TypeError):
        there.values["z"] = there.values["y"]


def test_reading_before_writing_is_refused() -> None:
    with pytest.raises(GraphError, match="relu_y reads h before anything wrote it"):
        graph((relu("h", "y"), relu("x", "h")), CHAIN)


def test_reading_an_unknown_name_is_refused() -> None:
    with pytest.raises(GraphError, match="relu_y reads nothing before"):
        graph((relu("nothing", "y"),), CHAIN)


def test_writing_twice_is_refused() -> None:
    with pytest.raises(GraphError, match="writes y, which another node writes"):
        graph((relu("x", "y"), relu("x", "y")), CHAIN)


def test_writing_an_input_is_refused() -> None:
    with pytest.raises(GraphError, match="writes x, which another node writes"):
        graph((relu("x", "x"), relu("x", "y")), CHAIN)


def test_writing_a_value_without_a_shape_is_refused() -> None:
    with pytest.raises(GraphError, match="writes z, which has no shape"):
        graph((relu("x", "z"), relu("x", "y")), CHAIN)


def test_an_output_that_nothing_writes_is_refused() -> None:
    with pytest.raises(GraphError, match="output y is never written"):
        graph((relu("x", "h"),), CHAIN)


def test_values_and_weights_cannot_be_changed() -> None:
    known = dict(CHAIN)
    chain = graph((relu("x", "y"),), known)
    known.clear()
    assert set(chain.values) == {"x", "h", "y"}
    with pytest.raises(TypeError):
        chain.weights["w"] = np.zeros(SHAPE, np.float32)  # type: ignore[index]  # shown to fail


# Values inside others


def sliced(
    first: ChannelSlice, second: ChannelSlice, shapes: tuple[Shape, Shape]
) -> dict[str, Value]:
    return {
        **values(x=SHAPE, y=(8, 3, 3)),
        "a": Value("a", shapes[0], first),
        "b": Value("b", shapes[1], second),
    }


TWO_HALVES = sliced(ChannelSlice("y", 0), ChannelSlice("y", 4), (SHAPE, SHAPE))


def test_slices_that_cover_their_parent_write_it() -> None:
    reader = Slice(name="all", x="y", output="z", axis=0, start=0, stop=8)
    whole = graph(
        (relu("x", "b"), relu("b", "a"), reader), TWO_HALVES | values(z=(8, 3, 3)), ("z", "y")
    )
    assert whole.shape("y") == (8, 3, 3)


def test_a_parent_is_not_written_while_a_slice_is_missing() -> None:
    with pytest.raises(GraphError, match="output y is never written"):
        graph((relu("x", "a"),), TWO_HALVES)
    early = Slice(name="early", x="y", output="z", axis=0, start=0, stop=4)
    with pytest.raises(GraphError, match="early reads y before"):
        graph((relu("x", "a"), early, relu("x", "b")), TWO_HALVES | values(z=SHAPE))


def test_a_slice_cannot_be_written_and_its_parent_too() -> None:
    concat = Concat(name="concat", parts=("x", "x"), output="y", axis=0)
    with pytest.raises(GraphError, match="concat writes y, which another node writes"):
        graph((relu("x", "a"), relu("x", "b"), concat), TWO_HALVES)


@pytest.mark.parametrize(
    ("second", "shape", "message"),
    [
        (ChannelSlice("y", 3), (5, 3, 3), "overlap"),
        (ChannelSlice("y", 5), (3, 3, 3), "leave a gap"),
        (ChannelSlice("y", 4), (4, 3, 2), "differ in shape"),
        (ChannelSlice("y", 4), (3, 3, 3), "have 7 channels, not 8"),
        (ChannelSlice("y", 4), (5, 3, 3), "have 9 channels, not 8"),
    ],
    ids=["overlap", "gap", "other size", "too few", "too many"],
)
def test_slices_that_do_not_cover_their_parent_are_refused(
    second: ChannelSlice, shape: Shape, message: str
) -> None:
    known = sliced(ChannelSlice("y", 0), second, (SHAPE, shape))
    with pytest.raises(GraphError, match=message):
        graph((relu("x", "a"), Identity(name="b", x="x", output="b")), known)


def test_slices_nest() -> None:
    known = TWO_HALVES | {
        "b1": Value("b1", (1, 3, 3), ChannelSlice("b", 0)),
        "b3": Value("b3", (3, 3, 3), ChannelSlice("b", 1)),
    }
    whole = graph((relu("x", "a"), relu("x", "b1"), relu("x", "b3")), known)
    assert whole.outputs == ("y",)
    with pytest.raises(GraphError, match="output y is never written"):
        graph((relu("x", "a"), relu("x", "b1")), known)


# Operands


PROBLEM = conv_problem(1, 4, 4, window((3, 3), (1, 1)))
CONV = Conv(name="c", x="x", weight="w", output="y", problem=PROBLEM)


@pytest.mark.parametrize(
    ("node", "operands"),
    [
        (CONV, ["x", "w"]),
        (replace(CONV, bias="b"), ["x", "w", "b"]),
        (replace(CONV, residual="r"), ["x", "w", "r"]),
        (replace(CONV, bias="b", residual="r"), ["x", "w", "b", "r"]),
        (Concat(name="n", output="y", parts=("q", "p", "q"), axis=0), ["q", "p", "q"]),
        (Binary(name="n", output="y", a="q", b="p", op=BinaryOp.SUB), ["q", "p"]),
        (Constant(name="n", output="y", weight="w"), ["w"]),
    ],
    ids=lambda entry: type(entry).__name__ if isinstance(entry, Node) else None,
)
def test_operands_come_in_field_order(node: Node, operands: list[str]) -> None:
    assert list(node.operands()) == operands


def test_renamed_changes_what_is_read_and_nothing_else() -> None:
    node = replace(CONV, name="x", output="x", bias="b")
    assert node.renamed({"x": "z", "b": "d", "r": "s"}) == replace(node, x="z", bias="d")


def test_renamed_reaches_into_several_operands() -> None:
    concat = Concat(name="n", output="y", parts=("q", "p", "q"), axis=1)
    assert concat.renamed({"q": "z"}) == replace(concat, parts=("z", "p", "z"))
