"""The proved ranges of values."""

import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.pool import PoolKind
from models.graph import Graph, Node
from models.rewrite import rewrite
from models.rewrite.nonnegative import is_nonnegative
from models.rewrite.rule import GraphView
from tests.support.models.graphs import GraphBuilder


def graph_of_activations() -> Graph:
    b = GraphBuilder(x=(8, 4, 4))
    b.conv("relu", "x", activation=RELU)
    b.activate("sigmoid", "x", Activation(ActivationKind.SIGMOID))
    b.scale_shift("relu6", "x", Activation(ActivationKind.CLIP, 0.0, 6.0))
    b.activate("clip", "x", Activation(ActivationKind.CLIP, -1.0, 1.0))
    b.activate("crossed clip", "x", Activation(ActivationKind.CLIP, 0.0, -1.0))  # -1 everywhere
    b.activate("leaky", "x", Activation(ActivationKind.LEAKY_RELU, 0.1))
    b.activate("hard swish", "x", Activation(ActivationKind.HARD_SWISH))
    b.conv("plain", "x")
    b.pool("pooled relu", b.slice("sliced", "relu", 0, 4), PoolKind.AVERAGE, 3)
    b.pool("pooled clip", "clip", PoolKind.MAX, 3)
    b.concat("both", "relu", "sigmoid")
    b.concat("one", "relu", "plain")
    b.identity("copy", b.transpose("turned", "relu", 0, 2, 1))
    return b.build(*[name for name in b.shapes if name != "x"])


@pytest.mark.parametrize(
    "name", ["relu", "sigmoid", "relu6", "sliced", "pooled relu", "both", "turned", "copy"]
)
def test_a_value_that_cannot_be_negative(name: str) -> None:
    assert is_nonnegative(GraphView(graph_of_activations()), name)


@pytest.mark.parametrize(
    "name", ["x", "plain", "clip", "crossed clip", "leaky", "hard swish", "pooled clip", "one"]
)
def test_a_value_that_may_be_negative(name: str) -> None:
    assert not is_nonnegative(GraphView(graph_of_activations()), name)


@pytest.mark.parametrize(("activation", "expected"), [(RELU, True), (None, False)])
def test_a_value_written_in_slices_is_what_its_slices_are(
    activation: Activation | None, expected: bool
) -> None:
    b = GraphBuilder(x=(8, 4, 4))
    b.conv("first", "x", activation=RELU)
    b.conv("second", "x", activation=activation)
    b.conv("y", b.concat("whole", "first", "second"))
    in_slices = rewrite(b.build("y")).graph
    assert is_nonnegative(GraphView(in_slices), "whole") is expected


class CountingView(GraphView):
    """A view that counts the values for which it is asked."""

    asked = 0

    def producer(self, name: str) -> Node | None:
        self.asked += 1
        assert self.asked <= 200, "values are asked about more than once"
        return super().producer(name)


def test_a_value_that_nested_concats_list_twice_is_followed_once() -> None:
    b = GraphBuilder(x=(8, 4, 4))
    b.conv("half 0", "x", k=8, activation=RELU)
    for i in range(60):  # 2^60 ways lead back
        b.slice(f"half {i + 1}", b.concat(f"both {i}", f"half {i}", f"half {i}"), 0, 8)
    view = CountingView(b.build("half 60"))
    assert is_nonnegative(view, "half 60")
    assert view.asked == 121
