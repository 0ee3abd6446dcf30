"""A Pool whose single window covers the whole image becomes global."""

import pytest

from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.window import Window
from models.graph import GlobalPool, Pool
from tests.support.models.graphs import GraphBuilder, kinds, rewritten


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
