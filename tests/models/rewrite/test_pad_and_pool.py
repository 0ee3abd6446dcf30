"""Padding moves into the Conv or Pool that reads it; a Pool over the whole image is global."""

from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.window import Window
from models.graph import ChannelShuffle, Conv, GlobalPool, Pool
from tests.models.rewrite.graphs import GraphBuilder, kinds, refusals, rewritten

BEGIN, END = (0, 1, 2), (0, 0, 1)


def test_zeros_around_the_image_become_padding_of_the_conv() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.conv("y", b.pad("p", "x", BEGIN, END), pad=1)
    (conv,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(conv, Conv)
    assert conv.problem.window.input == (5, 5)
    assert conv.problem.window.pads_begin == (2, 3)
    assert conv.problem.window.pads_end == (1, 2)


def test_a_pad_that_others_read_stays_for_them() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.conv("y", b.pad("p", "x", BEGIN, END))
    result = rewritten(b.build("y", "p"))
    assert kinds(result) == ["Pad", "Conv"]
    assert result.graph.nodes[1].renamed({"x": "z"}) != result.graph.nodes[1]  # reads x itself


@pytest.mark.parametrize("kind", [PoolKind.AVERAGE, PoolKind.AVERAGE_PADDED])
def test_zeros_that_an_average_counts_become_padding_that_it_counts(kind: PoolKind) -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pool("y", b.pad("p", "x", BEGIN, END), kind, 4)
    (pool,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(pool, Pool)
    assert pool.problem.kind is PoolKind.AVERAGE_PADDED
    assert pool.problem.window.pads_begin == (1, 2)


def test_an_average_that_counts_its_padding_counts_more() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pool("y", b.pad("p", "x", BEGIN, END), PoolKind.AVERAGE_PADDED, 4, pad=1)
    assert kinds(rewritten(b.build("y"))) == ["Pool"]


def test_an_average_over_windows_that_begin_beyond_the_image_counts_the_same() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pad("p", "x", (0, 1, 1), (0, 1, 1))
    ceil = Window((7, 7), (3, 3), (2, 2), (1, 1), (0, 0), (0, 0), (4, 4))  # ceil_mode
    b.add(Pool, "y", (4, 4, 4), x="p", problem=PoolProblem(PoolKind.AVERAGE, 4, ceil))
    with np.errstate(invalid="ignore"):
        result = rewritten(b.build("y"))
    assert kinds(result) == ["Pool"]


def test_zeros_around_what_is_never_negative_become_padding_of_a_maximum() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.conv("c", "x", k=4, activation=RELU)
    b.pool("y", b.pad("p", "c", (0, 1, 2), (0, 2, 1)), PoolKind.MAX, 3, pad=0)
    assert kinds(rewritten(b.build("y"))) == ["Conv", "Pool"]


def test_the_lowest_number_around_the_image_becomes_padding_of_a_maximum() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pool("y", b.pad("p", "x", BEGIN, END, float("-inf")), PoolKind.MAX, 4)
    assert kinds(rewritten(b.build("y"))) == ["Pool"]


def refused_pad(case: str) -> GraphBuilder:
    b = GraphBuilder(x=(4, 5, 5))
    b.conv("c", "x", k=4, activation=Activation(ActivationKind.SIGMOID))
    spatial: dict[str, Any] = {"begin": (0, 1, 1), "end": (0, 1, 1)}
    match case:
        case "channels":
            b.conv("y", b.pad("p", "x", (1, 0, 0), (0, 0, 0)))
        case "conv of ones":
            b.conv("y", b.pad("p", "x", **spatial, value=1.0))
        case "maximum of ones":
            b.pool("y", b.pad("p", "x", **spatial, value=1.0), PoolKind.MAX, 3)
        case "average of ones":
            b.pool("y", b.pad("p", "x", **spatial, value=1.0), PoolKind.AVERAGE, 3)
        case "maximum of anything":
            b.pool("y", b.pad("p", "x", **spatial), PoolKind.MAX, 3)
        case "maximum before the image":
            b.pool("y", b.pad("p", "c", (0, 3, 0), (0, 0, 0)), PoolKind.MAX, 3)
        case "maximum behind the image":
            b.pool("y", b.pad("p", "c", (0, 0, 0), (0, 0, 3)), PoolKind.MAX, 3)
        case "maximum over windows with holes":
            b.pad("p", "c", (0, 1, 1), (0, 1, 1))
            holes = Window((7, 7), (3, 3), (1, 1), (2, 2), (0, 0), (0, 0), (3, 3))
            b.add(Pool, "y", (4, 3, 3), x="p", problem=PoolProblem(PoolKind.MAX, 4, holes))
        case "average without its padding":
            b.pool("y", b.pad("p", "x", **spatial), PoolKind.AVERAGE, 3, pad=1)
        case _:
            raise AssertionError(case)
    return b


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("channels", "pad_p pads channels too"),
        ("conv of ones", "pad_p pads with 1, a Conv with 0"),
        ("maximum of ones", "pad_p pads with 1, a maximum ignores padding"),
        ("average of ones", "pad_p pads with 1, an average with 0"),
        (
            "maximum of anything",
            "x may be negative, so the zeros of pad_p may be the maximum",
        ),
        ("maximum behind the image", "a window may hold nothing but the zeros of pad_p"),
        ("maximum over windows with holes", "a window may hold nothing but the zeros of pad_p"),
        ("maximum before the image", "a window may hold nothing but the zeros of pad_p"),
        (
            "average without its padding",
            "pool_y counts the zeros of pad_p, not those of its own padding",
        ),
    ],
)
def test_why_a_pad_stays(case: str, reason: str) -> None:
    b = refused_pad(case)
    result = rewritten(b.build("y"))
    assert "Pad" in kinds(result)
    (refused,) = refusals(result, "fold_pad").values()
    assert refused == reason


@pytest.mark.parametrize(
    ("kind", "kernel", "pad", "expected"),
    [
        (PoolKind.MAX, 5, 0, PoolKind.MAX),
        (PoolKind.AVERAGE, 5, 0, PoolKind.AVERAGE),
        (PoolKind.AVERAGE_PADDED, 5, 0, PoolKind.AVERAGE),
        (PoolKind.AVERAGE, 7, 1, PoolKind.AVERAGE),
        (PoolKind.MAX, 7, 1, PoolKind.MAX),
    ],
)
def test_one_window_over_the_whole_image_is_global(
    kind: PoolKind, kernel: int, pad: int, expected: PoolKind
) -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pool("y", "x", kind, kernel, pad=pad)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, GlobalPool)
    assert node.kind is expected


@pytest.mark.parametrize(
    ("kind", "kernel", "pad", "stride"),
    [
        (PoolKind.AVERAGE_PADDED, 7, 1, 1),  # divides by 49, not by 25
        (PoolKind.MAX, 4, 0, 2),  # one window, but not the last row
        (PoolKind.MAX, 4, 1, 1),
        (PoolKind.MAX, 5, 1, 3),  # large enough, but it begins before the image
    ],
)
def test_other_windows_are_not(kind: PoolKind, kernel: int, pad: int, stride: int) -> None:
    b = GraphBuilder(x=(4, 5, 5))
    b.pool("y", "x", kind, kernel, pad=pad, stride=stride)
    assert kinds(rewritten(b.build("y"))) == ["Pool"]


def test_a_window_that_leaves_positions_out_is_not_global() -> None:
    b = GraphBuilder(x=(4, 5, 5))
    holes = Window((5, 5), (5, 5), (1, 1), (2, 2), (0, 0), (4, 4), (1, 1))
    b.add(Pool, "y", (4, 1, 1), x="x", problem=PoolProblem(PoolKind.AVERAGE, 4, holes))
    assert kinds(rewritten(b.build("y"))) == ["Pool"]


def shuffle(b: GraphBuilder, axes: tuple[int, ...], split: tuple[int, ...]) -> str:
    b.transpose("t", b.reshape("r", "x", split), *axes)
    return b.reshape("y", "t", (12, 4, 2))


@pytest.mark.parametrize(
    ("axes", "split"),
    [((1, 0, 2, 3), (3, 4, 4, 2)), ((1, 0, 2), (3, 4, 8)), ((1, 0), (12, 8))],
)
def test_split_swapped_and_merged_channels_are_shuffled(
    axes: tuple[int, ...], split: tuple[int, ...]
) -> None:
    b = GraphBuilder(x=(12, 4, 2))
    shuffle(b, axes, split)
    found = kinds(rewritten(b.build("y")))
    assert found == (["ChannelShuffle"] if len(axes) > 2 else ["Reshape", "Transpose", "Reshape"])


def test_the_groups_of_a_shuffle_are_those_split_off() -> None:
    b = GraphBuilder(x=(12, 4, 2))
    shuffle(b, (1, 0, 2, 3), (3, 4, 4, 2))
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, ChannelShuffle)
    assert node.groups == 3


@pytest.mark.parametrize(
    ("axes", "split"),
    [((1, 0, 3, 2), (3, 4, 4, 2)), ((0, 2, 1, 3), (3, 4, 4, 2)), ((1, 0, 2), (4, 6, 4))],
)
def test_other_transposes_are_no_shuffle(axes: tuple[int, ...], split: tuple[int, ...]) -> None:
    b = GraphBuilder(x=(12, 4, 2))
    shuffle(b, axes, split)
    assert kinds(rewritten(b.build("y"))) == ["Reshape", "Transpose", "Reshape"]
