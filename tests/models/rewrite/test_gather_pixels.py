"""Moves of whole pixels become one gather or none."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import BYTE
from models.graph import Graph, Resample, Softmax
from models.rewrite import rewrite
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SIDE, C = 4, 8
ROLLED = np.roll(np.arange(SIDE**2).reshape(SIDE, SIDE), (-1, -1), (0, 1)).ravel()
WINDOWS = np.arange(SIDE**2).reshape(2, 2, 2, 2).swapaxes(1, 2).ravel()


def image() -> GraphBuilder:
    return GraphBuilder(x=(C, SIDE, SIDE))


def places(graph: Graph) -> np.ndarray:
    """Return the source of each pixel after the graph's only gather."""
    (node,) = (node for node in graph.nodes if isinstance(node, Resample))
    row, table = (graph.weights[name] for name in node.taps)
    assert np.array_equal(row, [[[0, 1]]])
    assert (table[:, 0, 1] == 1).all()
    found: np.ndarray = table[:, 0, 0]
    return found


def test_an_image_is_rolled_by_one_gather() -> None:
    b = image()
    b.conv("y", b.roll("r", "x", 1, 1, 2), kernel=1)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Reshape", "Resample", "Reshape", "Conv"]
    assert np.array_equal(places(result.graph), ROLLED)


def test_a_roll_and_windows_are_one_gather() -> None:
    b = image()
    b.gemm("y", b.windows("w", b.roll("r", "x", 1, 1, 2), 2))
    result = rewritten(b.build("y"))
    assert kinds(result).count("Resample") == 1
    assert not {"Concat", "Slice"} & set(kinds(result))
    assert np.array_equal(places(result.graph), ROLLED[WINDOWS])


def test_windows_and_back_move_nothing() -> None:
    b = image()
    x = b.joined("j", b.windows("w", b.roll("r", "x", 1, 1, 2), 2), SIDE)
    b.conv("y", b.roll("b", x, SIDE - 1, 1, 2))
    assert kinds(rewritten(b.build("y"))) == ["Conv"]


def test_tokens_in_the_order_of_pixels_are_the_same_memory() -> None:
    b = image()
    b.gemm("y", b.windows("w", "x", SIDE))  # one window
    assert "Resample" not in kinds(rewritten(b.build("y")))


def test_one_copy_stays() -> None:
    b = image()
    b.conv("y", b.transpose("t", "x", 0, 2, 1))
    assert kinds(rewritten(b.build("y"))) == ["Transpose", "Conv"]


def test_blocks_of_pixels_that_become_channels_are_no_whole_pixels() -> None:
    b = image()
    apart = b.reshape("a", "x", (C, 2, 2, 2, 2))
    b.conv("y", b.reshape("r", b.transpose("t", apart, 0, 2, 4, 1, 3), (4 * C, 2, 2)))
    assert "Resample" not in kinds(rewritten(b.build("y")))


def test_channels_that_change_places_are_no_whole_pixels() -> None:
    b = image()
    b.conv("y", b.roll("r", "x", 1, 0))
    assert "Resample" not in kinds(rewritten(b.build("y")))


def test_slices_of_two_values_are_no_roll() -> None:
    b = GraphBuilder(x=(C, SIDE, SIDE), z=(C, SIDE, SIDE))
    parts = b.part("p", "x", 1, 1, SIDE), b.part("q", "z", 1, 0, 1)
    b.conv("y", b.concat("k", *parts, axis=1))
    assert "Resample" not in kinds(rewritten(b.build("y")))


def test_a_rolled_value_that_others_read_stays_for_them() -> None:
    b = image()
    rolled = b.roll("r", "x", 1, 1, 2)
    b.gemm("y", b.windows("w", rolled, 2))
    result = rewritten(b.build("y", "r"))
    assert kinds(result).count("Resample") == 2


def test_bytes_are_moved_by_copies() -> None:
    b = image()
    b.conv("y", b.roll("r", "x", 1, 1, 2))
    graph = b.build("y")
    stored = replace(BYTE, scale=0.02, zero_point=128)
    values = {
        name: value if name == "y" else replace(value, stored=stored)
        for name, value in graph.values.items()
    }
    result = rewrite(replace(graph, values=values))
    assert "Resample" not in kinds(result)
    (said,) = set(refusals(result, "gather_pixels").values())
    assert said == "x consists of bytes, but a Resample reads floats"


@pytest.mark.parametrize("limit", ["_MOST_PIXELS", "_MOST_NUMBERS"])
def test_many_pixels_are_moved_by_copies(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("models.rewrite.gather_pixels"), limit, 15)
    b = image()
    b.conv("y", b.roll("r", "x", 1, 1))
    result = rewritten(b.build("y"))
    assert "Resample" not in kinds(result)
    (said,) = refusals(result, "gather_pixels").values()
    assert said.startswith("it moves 16 pixels of 8 channels; at most ")


def test_patches_that_are_seen_with_their_channels_last_are_one_gather() -> None:
    """MobileViT unfolds them like this: C × windows × tokens becomes tokens × windows × C."""
    b = image()
    apart = b.transpose("t", b.reshape("a", "x", (2 * C, 2, 2, 2)), 0, 2, 1, 3)
    patches = b.transpose("p", b.reshape("b", apart, (C, 4, 4)), 2, 1, 0)
    inner = b.gemm("g", patches, C)
    total = b.binary("s", BinaryOp.ADD, patches, inner)
    b.add(Softmax, "y", b.shapes[total], x=total, axis=1)
    result = rewritten(b.build("y"))
    assert kinds(result).count("Resample") == 1
    assert "Binary" not in kinds(result), "both are seen of C × windows × tokens"
    assert np.array_equal(places(result.graph), WINDOWS)


def test_patches_in_another_order_than_what_is_added_to_them_are_gathered_in_it() -> None:
    b = image()
    apart = b.transpose("t", b.reshape("a", "x", (2 * C, 2, 2, 2)), 0, 2, 1, 3)
    patches = b.transpose("p", b.reshape("b", apart, (C, 4, 4)), 2, 1, 0)
    seen = b.transpose("q", b.conv("c", "x"), 1, 2, 0)
    b.conv("y", b.transpose("u", b.binary("s", BinaryOp.ADD, patches, seen), 2, 0, 1))
    result = rewritten(b.build("y"))
    assert not {"Binary", "Transpose"} & set(kinds(result))
    assert np.array_equal(places(result.graph), WINDOWS.reshape(4, 4).T.ravel())
