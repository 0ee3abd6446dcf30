"""A constant added to a linear layer of one token becomes its bias."""

import numpy as np
import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Gemm, Shape
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten


@pytest.mark.parametrize("shape", [(6,), (1, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_number_an_output_is_its_bias(shape: Shape, bias: bool) -> None:
    b = GraphBuilder(x=(1, 4))
    total = b.binary("s", BinaryOp.ADD, b.noise("c", shape), b.gemm("g", "x", 6, bias=bias))
    b.activate("y", total, RELU)
    result = rewritten(b.build("y"), rounds=True)
    (node,) = result.graph.nodes
    assert isinstance(node, Gemm)
    assert node.activation == RELU
    assert node.bias is not None
    expected = b.weights["c"].reshape(6) + (b.weights["g.b"] if bias else 0)
    np.testing.assert_allclose(result.graph.weights[node.bias], expected, rtol=1e-6)


def test_a_constant_of_more_rows_stays() -> None:
    b = GraphBuilder(x=(1, 4))
    b.binary("y", BinaryOp.ADD, b.gemm("g", "x", 6), b.noise("c", (5, 1)))
    assert kinds(rewritten(b.build("y"))) == ["Gemm", "Binary"]


def test_a_layer_that_others_read_stays() -> None:
    b = GraphBuilder(x=(1, 4))
    b.binary("y", BinaryOp.ADD, b.gemm("g", "x", 6), b.noise("c", (6,)))
    result = rewritten(b.build("y", "g"))
    assert kinds(result) == ["Gemm", "Binary"]
    assert refusals(result, "fold_bias") == {"binary_y": "g is an output of the network"}
