"""An activation of a Concat moves to the nodes that write its parts."""

import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (8, 4, 4)
SIGMOID = Activation(ActivationKind.SIGMOID)
RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
ADD, SUB, MUL, DIV = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV


def test_an_activation_of_a_concat_moves_to_its_parts() -> None:
    # ShuffleNet's stage ends: a Conv and a pooled shortcut that is never negative.
    b = GraphBuilder(x=SHAPE)
    b.conv("s", "x", activation=RELU)
    b.pool("p", "s", PoolKind.AVERAGE, 3, pad=1)
    b.activate("r", b.concat("k", b.conv("c", "s"), b.binary("a", ADD, "s", "x"), "p"), RELU)
    b.conv("y", "r")
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Pool", "Conv", "Binary", "Conv"]
    assert [getattr(n, "activation", None) for n in result.graph.nodes[2:4]] == [RELU, RELU]


def test_an_activation_of_a_concat_stays_where_a_part_cannot_take_it() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.concat("k", b.conv("c", "x"), b.pool("p", "x", PoolKind.MAX, 3, pad=1)), RELU)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Conv", "Pool", "Activate"]


@pytest.mark.parametrize(
    ("part", "outputs", "reason"),
    [
        ("p", ("y",), "p is not computed by a node that takes an activation"),
        ("d", ("y",), "conv_d already has the activation Sigmoid"),
        ("e", ("y", "e"), "e is an output of the network"),
        ("e", ("y", "k"), "k is an output of the network"),
    ],
)
def test_why_an_activation_of_a_concat_stays(
    part: str, outputs: tuple[str, ...], reason: str
) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.pool("p", "x", PoolKind.MAX, 3, pad=1)
    b.conv("d", "x", activation=SIGMOID)
    b.conv("e", "x")
    b.activate("y", b.concat("k", part, "c", axis=1), RELU6)
    result = rewritten(b.build(*outputs))
    assert refusals(result, "activation_before_concat") == {"activate_y": reason}
