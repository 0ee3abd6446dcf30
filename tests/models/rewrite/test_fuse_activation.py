"""An activation becomes the epilogue of the node before it."""

import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Binary
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (8, 4, 4)
SIGMOID = Activation(ActivationKind.SIGMOID)
RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
HARD_SIGMOID = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 1 / 2)
HARD_SWISH = Activation(ActivationKind.HARD_SWISH)
SILU = Activation(ActivationKind.SILU)
ADD, SUB, MUL, DIV = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV


@pytest.mark.parametrize("activation", [RELU, RELU6, SIGMOID, HARD_SWISH, SILU, HARD_SIGMOID])
@pytest.mark.parametrize("kind", ["conv", "gemm", "scale_shift", "add"])
def test_an_activation_ends_in_the_node_before_it(kind: str, activation: Activation) -> None:
    shape = (6,) if kind == "gemm" else SHAPE
    b = GraphBuilder(x=shape, z=shape)
    match kind:
        case "conv":
            b.conv("h", "x")
        case "gemm":
            b.gemm("h", "x")
        case "scale_shift":
            b.scale_shift("h", "x")
        case "add":
            b.binary("h", ADD, "x", "z")
    b.activate("y", "h", activation)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert getattr(node, "activation") == activation  # noqa: B009  (four node types have it)


def test_an_activation_after_another_node_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.pool("p", "x", PoolKind.MAX, 2), RELU)
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Pool", "Activate"]
    assert result.refused == ()


def test_a_second_activation_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x", activation=SIGMOID), RELU6)
    result = rewritten(b.build("y"))
    assert refusals(result, "fuse_activation") == {
        "activate_y": "conv_c already has the activation Sigmoid"
    }


def test_an_activation_of_a_value_that_others_read_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x"), RELU)
    b.pool("p", "c", PoolKind.MAX, 2)
    result = rewritten(b.build("y", "p"))
    assert refusals(result, "fuse_activation") == {"activate_y": "c is also read by pool_p"}


def test_an_activation_of_an_output_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    b.activate("y", b.conv("c", "x"), RELU)
    result = rewritten(b.build("y", "c"))
    assert refusals(result, "fuse_activation") == {"activate_y": "c is an output of the network"}


def test_a_binary_keeps_its_operands_when_it_takes_an_activation() -> None:
    b = GraphBuilder(x=SHAPE, z=SHAPE)
    b.activate("y", b.binary("s", SUB, "x", "z"), RELU)
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Binary)
    assert (node.a, node.b, node.op, node.output) == ("x", "z", SUB, "y")
