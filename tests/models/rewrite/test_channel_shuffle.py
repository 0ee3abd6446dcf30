"""Reshape, Transpose, Reshape that interleave groups of channels are a ChannelShuffle."""

import pytest

from models.graph import ChannelShuffle
from tests.support.models.graphs import GraphBuilder, kinds, rewritten


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
