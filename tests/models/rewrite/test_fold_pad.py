"""Padding moves into the Conv or Pool that reads it."""

from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.window import Window
from models.graph import Conv, Pool
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

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
        case "channels at the end":
            b.conv("y", b.pad("p", "x", (0, 0, 0), (2, 0, 0)))
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
        ("channels at the end", "pad_p pads channels too"),
        ("conv of ones", "pad_p pads with 1, but a Conv pads with 0"),
        ("maximum of ones", "pad_p pads with 1, but a maximum pool ignores padding"),
        ("average of ones", "pad_p pads with 1, but an average pool pads with 0"),
        (
            "maximum of anything",
            "x may be negative, so the zeros of pad_p may be the maximum",
        ),
        ("maximum behind the image", "a window may hold only the zeros of pad_p"),
        ("maximum over windows with holes", "a window may hold only the zeros of pad_p"),
        ("maximum before the image", "a window may hold only the zeros of pad_p"),
        (
            "average without its padding",
            "pool_y counts the zeros of pad_p, but not its own padding",
        ),
    ],
)
def test_why_a_pad_stays(case: str, reason: str) -> None:
    b = refused_pad(case)
    result = rewritten(b.build("y"))
    assert "Pad" in kinds(result)
    (refused,) = refusals(result, "fold_pad").values()
    assert refused == reason
