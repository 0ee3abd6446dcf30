"""Channels that are split into groups, normalised and joined again become one node."""

import numpy as np
import pytest

from kernels.problems.activation import RELU
from models.graph import Normalise, Shape
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (6, 4, 5)


def grouped(
    b: GraphBuilder,
    cut: Shape = (2, 60),
    axes: tuple[int, ...] = (1,),
    weights: Shape = (2, 1),
    **fields: object,
) -> str:
    """Return x, split and normalised."""
    split = b.reshape("split", "x", cut)
    scale, shift = b.noise("g", weights), b.noise("h", weights)
    return b.add(
        Normalise, "n", cut, x=split, scale=scale, shift=shift, axes=axes, epsilon=0.1, **fields
    )


@pytest.mark.parametrize(
    ("cut", "axes"), [((2, 60), (1,)), ((3, 40), (1,)), ((6, 20), (1,)), ((2, 3, 20), (1, 2))]
)
def test_the_three_nodes_are_one(cut: Shape, axes: tuple[int, ...]) -> None:
    b = GraphBuilder(x=SHAPE)
    b.reshape("y", grouped(b, cut, axes, (cut[0], *[1] * len(axes))), SHAPE)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Normalise)
    assert (node.groups, node.axes) == (cut[0], (0, 1, 2))


def test_one_scale_for_all_groups_and_what_scales_the_channels_is_folded() -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.reshape("back", grouped(b, weights=(1, 1)), SHAPE), RELU)
    result = rewritten(b.build("y"), rounds=True)
    (node,) = result.graph.nodes
    assert isinstance(node, Normalise)
    assert node.activation == RELU
    scale = result.graph.weights[node.scale].reshape(-1)
    assert np.allclose(scale, b.weights["g"].item() * b.weights["y.s"])


def nodes_of(b: GraphBuilder, normal: str, back: Shape = SHAPE) -> list[str]:
    b.reshape("y", normal, back)
    return kinds(rewritten(b.build("y")))


THREE = ["Reshape", "Normalise", "Reshape"]


def test_a_normalisation_of_some_of_a_groups_axes_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    assert nodes_of(b, grouped(b, (2, 3, 20), (2,), (2, 1, 1))) == THREE


def test_groups_that_do_not_divide_the_channels_stay() -> None:
    b = GraphBuilder(x=SHAPE)
    assert nodes_of(b, grouped(b, (4, 30), weights=(4, 1))) == THREE


def test_a_number_an_element_of_a_group_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    assert nodes_of(b, grouped(b, weights=(2, 60))) == THREE


def test_another_shape_behind_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    assert nodes_of(b, grouped(b), (6, 5, 4)) == THREE


def test_an_activation_between_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    assert nodes_of(b, grouped(b, activation=RELU)) == THREE


def test_a_normalised_value_that_others_read_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.reshape("y", grouped(b), SHAPE)
    b.transpose("z", "n", 1, 0)
    result = rewritten(b.build("y", "z"))
    reason = "n is also read by transpose_z"
    assert refusals(result, "group_normalisation") == {"reshape_y": reason}
