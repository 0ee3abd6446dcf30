"""Concats along channels disappear: their inputs are written directly into the output."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.pool import PoolKind
from models.graph import ChannelSlice, Concat, Graph, Identity
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (16, 4, 4)


def inside(graph: Graph) -> dict[str, ChannelSlice]:
    """Return the values inside other values, with their positions."""
    return {v.name: v.inside for v in graph.values.values() if v.inside is not None}


def test_parts_are_written_at_their_channels() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x", k=8)
    b.pool("p", "x", PoolKind.MAX, 3, pad=1)
    b.scale_shift("n", "x", RELU)
    b.conv("y", b.concat("k", "c", "p", "n"))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Pool", "ScaleShift", "Conv"]
    assert inside(result.graph) == {
        "c": ChannelSlice("k", 0),
        "p": ChannelSlice("k", 8),
        "n": ChannelSlice("k", 24),
    }
    assert result.refused == ()


def test_a_concat_that_is_the_networks_output_vanishes_too() -> None:
    b = GraphBuilder(x=SHAPE)
    b.concat("y", b.conv("c", "x"), b.conv("d", "x"))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Conv"]
    assert result.graph.outputs == ("y",)


def test_a_part_that_others_read_is_read_in_its_place() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.concat("k", b.conv("c", "x"), b.conv("d", "c")))
    b.conv("z", "c")
    assert kinds(rewritten(b.build("y", "z"))) == ["Conv"] * 4


def test_vectors_are_joined_in_place_too() -> None:
    b = GraphBuilder(x=(16,))
    b.gemm("y", b.concat("k", b.gemm("g", "x", 8), b.gemm("h", "x", 8)))
    assert kinds(rewritten(b.build("y"))) == ["Gemm", "Gemm", "Gemm"]


def test_concats_in_concats_lie_in_one_buffer() -> None:
    # Inception v3's last blocks: branches that split and join before the block's own Concat.
    b = GraphBuilder(x=SHAPE)
    b.concat("inner", b.conv("c", "x"), b.conv("d", "x"))
    b.conv("y", b.concat("outer", b.conv("a", "x"), "inner", b.conv("e", "x")))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv"] * 5
    assert inside(result.graph) == {
        "a": ChannelSlice("outer", 0),
        "inner": ChannelSlice("outer", 8),
        "c": ChannelSlice("inner", 0),
        "d": ChannelSlice("inner", 8),
        "e": ChannelSlice("outer", 24),
    }


def dense_block(relist: bool, layers: int = 5) -> Graph:
    """Return DenseNet's block: each layer reads all layers before it, from the last Concat or from
    a new one."""
    b = GraphBuilder(x=SHAPE)
    parts = [b.conv("c0", "x")]
    x = "c0"
    for layer in range(1, layers):
        b.scale_shift(f"n{layer}", x, RELU)
        parts.append(b.conv(f"c{layer}", f"n{layer}"))
        x = b.concat(f"k{layer}", *(parts if relist else (x, parts[-1])))
    return b.build(b.conv("y", x))


@pytest.mark.parametrize("relist", [True, False])
def test_a_dense_block_lies_in_one_buffer(relist: bool) -> None:
    result = rewritten(dense_block(relist))
    assert kinds(result) == ["Conv", *["ScaleShift", "Conv"] * 4, "Conv"]
    assert inside(result.graph) == {
        "c0": ChannelSlice("k1", 0),
        "c1": ChannelSlice("k1", 8),
        "k1": ChannelSlice("k2", 0),
        "c2": ChannelSlice("k2", 16),
        "k2": ChannelSlice("k3", 0),
        "c3": ChannelSlice("k3", 24),
        "k3": ChannelSlice("k4", 0),
        "c4": ChannelSlice("k4", 32),
    }


def test_concats_along_another_axis_stay_as_they_are() -> None:
    b = GraphBuilder(x=SHAPE)
    for name in "cde":
        b.conv(name, "x")
    b.conv("y", b.concat("k", "c", "d", axis=1))
    b.conv("z", b.concat("m", "c", "d", "e", axis=1))
    result = rewritten(b.build("y", "z"))
    concats = [node for node in result.graph.nodes if isinstance(node, Concat)]
    assert [concat.parts for concat in concats] == [("c", "d"), ("c", "d", "e")]
    assert refusals(result, "concat_in_place") == {
        "concat_k": "it concatenates along axis 1, not along channels",
        "concat_m": "it concatenates along axis 1, not along channels",
    }


def test_a_concat_begins_with_the_longest_that_runs_before_it() -> None:
    b = GraphBuilder(x=SHAPE)
    for name in "cdef":
        b.conv(name, "x")
    b.conv("w", b.concat("three", "c", "d", "e"))
    b.conv("y", b.concat("two", "c", "d"))
    b.conv("z", b.concat("four", "c", "d", "e", "f"))
    result = rewritten(b.build("w", "y", "z"))
    places = inside(result.graph)
    assert (places["c"], places["three"]) == (ChannelSlice("three", 0), ChannelSlice("four", 0))
    assert refusals(result, "concat_in_place") == {
        "concat_two": "c is copied: it is stored in three; d is copied: it is stored in three"
    }


def test_concats_along_different_axes_are_not_nested() -> None:
    b = GraphBuilder(x=SHAPE)
    for name in "cde":
        b.conv(name, "x")
    b.conv("y", b.concat("k", "c", "d", axis=1))
    b.conv("z", b.concat("m", "c", "d", "e"))
    result = rewritten(b.build("y", "z"))
    assert [node.parts for node in result.graph.nodes if isinstance(node, Concat)] == [("c", "d")]
    assert inside(result.graph)["c"] == ChannelSlice("m", 0)


@pytest.mark.parametrize(
    ("part", "outputs", "reason"),
    [
        ("x", ("y",), "it is an input of the network"),
        ("d", ("y", "d"), "it is an output of the network"),
        ("d", ("y", "z"), "it is stored in before"),
        ("c", ("y",), "it is listed twice"),
    ],
)
def test_a_part_that_cannot_be_placed_is_copied_alone(
    part: str, outputs: tuple[str, ...], reason: str
) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x", k=16)
    b.conv("d", "x", k=16)
    b.conv("z", b.concat("before", b.conv("e", "x"), "d"))
    b.conv("y", b.concat("k", "c", part))
    result = rewritten(b.build(*outputs))
    assert [n.output for n in result.graph.nodes if isinstance(n, Identity)] == ["k.1"]
    places = inside(result.graph)
    assert (places["c"], places["k.1"]) == (ChannelSlice("k", 0), ChannelSlice("k", 16))
    assert refusals(result, "concat_in_place") == {"concat_k.1": f"{part} is copied: {reason}"}


def test_a_view_of_another_value_is_copied() -> None:
    b = GraphBuilder(x=(16, 4, 4), z=(16, 4, 2))
    b.reshape("r", b.conv("d", "x", k=8), (16, 4, 2))
    b.conv("y", b.concat("k", b.conv("c", "z", k=16), "r"))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Reshape", "Conv", "Identity", "Conv"]
    assert refusals(result, "concat_in_place") == {
        "concat_k.1": "r is copied: reshape_r is a view of another value"
    }


def test_a_part_that_is_flattened_too_is_copied() -> None:
    b = GraphBuilder(x=SHAPE)
    b.gemm("z", b.reshape("v", b.conv("c", "x"), (8 * 16,)))
    b.conv("y", b.concat("k", "c", b.conv("d", "x")))
    result = rewritten(b.build("y", "z"))
    assert refusals(result, "concat_in_place") == {
        "concat_k.0": "c is copied: reshape_v reads it as contiguous memory"
    }


def test_a_part_at_an_offset_that_vectors_do_not_reach_is_copied() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.concat("k", b.conv("c", "x", k=12), b.conv("d", "x", k=12)))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Conv", "Identity", "Conv"]
    assert refusals(result, "concat_in_place") == {
        "concat_k.1": "d is copied: offset 12 is not a multiple of 8 channels"
    }


def test_a_concat_whose_every_part_would_be_copied_stays() -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    b.conv("y", b.concat("k", "x", "z"))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Concat", "Conv"]
    assert refusals(result, "concat_in_place") == {
        "concat_k": "x is copied: it is an input of the network; "
        "z is copied: it is an input of the network"
    }
