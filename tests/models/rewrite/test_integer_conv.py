"""Convolutions and fully connected layers between Dequantize and Quantize multiply bytes."""

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import Precision
from models.graph import Activate, ChannelShuffle, Conv, Dequantize, Gemm, Identity, Quantize
from models.rewrite import RULES, RULES_OF_INTEGERS, rewrite
from tests.support.models.byte_graphs import COARSE, ByteBuilder, of_bytes, reasons, rewritten_bytes

_TANH = Activation(ActivationKind.TANH)


def test_a_convolution_between_bytes_is_oneof_bytes() -> None:
    to = ByteBuilder()
    x = to.dequantize(to.quantize("q", "x"))
    to.b.activate("r", to.conv("c", x), RELU)
    graph = to.build(to.dequantize(to.quantize("y", "r", COARSE)))
    _, conv, last = rewritten_bytes(graph).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.x, conv.output, conv.activation) == ("q", "y", RELU)
    assert conv.problem.precision is Precision.INT8
    assert isinstance(last, Dequantize)
    # Without the rules it stays in float.
    assert {type(node) for node in rewrite(graph, RULES).graph.nodes} == {
        Quantize,
        Dequantize,
        Conv,
    }


def test_a_fully_connected_layer_multiplies_bytes() -> None:
    to = ByteBuilder()
    flat = to.b.reshape("f", to.dequantize(to.quantize("q", "x")), (8 * 36,))
    made = to.b.gemm("g", to.dequantize(to.quantize("f8", flat)), 5)
    gemm = to.b.nodes[-1]
    assert isinstance(gemm, Gemm)
    to.to_grid(gemm.weight)
    result = rewritten_bytes(to.build(to.dequantize(to.quantize("y", made))))
    (found,) = (node for node in of_bytes(result) if isinstance(node, Gemm))
    assert found.output == "y"
    assert found.weight in result.graph.grids  # not permuted


def test_a_fully_connected_layer_of_several_rows_an_image_stays_in_float() -> None:
    to = ByteBuilder()
    rows = to.b.reshape("f", to.dequantize(to.quantize("q", "x")), (16, 18))
    made = to.b.gemm("g", to.dequantize(to.quantize("f8", rows)), 5)
    gemm = to.b.nodes[-1]
    assert isinstance(gemm, Gemm)
    to.to_grid(gemm.weight)
    result = rewritten_bytes(to.build(to.dequantize(to.quantize("y", made))))
    assert not any(isinstance(node, Conv | Gemm) for node in of_bytes(result))
    (layer,) = (node for node in result.graph.nodes if isinstance(node, Conv))
    assert layer.problem.precision is not Precision.INT8


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("weights", "the filter of conv_c, is not quantized"),
        ("activation", "conv_c has the activation Tanh, which does more than clamp"),
        ("reader", "c is also read by"),
        ("input", "x, which conv_c reads, is not quantized"),
        ("bias", "exceeds 32 bits"),
    ],
)
def test_a_convolution_that_is_not_whole_stays_in_float_and_says_why(
    change: str, reason: str
) -> None:
    to = ByteBuilder()
    x = "x" if change == "input" else to.dequantize(to.quantize("q", "x"))
    y = to.conv("c", x, bias=True)
    conv = to.b.nodes[-1]
    assert isinstance(conv, Conv)
    if change == "weights":
        del to.grids[conv.weight]
    if change == "bias" and conv.bias is not None:
        to.b.weights[conv.bias][0] = 1e9
    if change == "activation":
        y = to.b.add(Activate, "t", to.b.shapes[y], x=y, activation=_TANH)
    y = to.dequantize(to.quantize("y", y))
    if change == "reader":
        y = to.b.binary("both", BinaryOp.MUL, y, "c")
    result = rewrite(to.build(y), RULES_OF_INTEGERS)
    (left,) = (node for node in result.graph.nodes if isinstance(node, Conv))
    assert left.problem.precision is Precision.FP32
    assert reason in reasons(result)


@pytest.mark.parametrize("groups", [1, 2])
def test_numbers_of_9_bits_are_two_bytes_which_both_multiply(groups: int) -> None:
    to = ByteBuilder()
    y = to.conv("c", to.dequantize(to.quantize("q", "x")), bias=True, groups=groups)
    conv = to.b.nodes[-1]
    assert isinstance(conv, Conv)
    to.to_grid(conv.weight, 200)
    result = rewritten_bytes(to.build(to.dequantize(to.quantize("y", y))))
    kinds = [type(node) for node in of_bytes(result)]
    assert kinds == [Quantize, Identity, ChannelShuffle, Conv]  # joined in place
    (whole,) = (node for node in result.graph.nodes if isinstance(node, Conv))
    numbers = result.graph.grids[whole.weight].numbers
    assert np.abs(numbers).max() <= 128
    before = to.grids[conv.weight].numbers
    assert (numbers[:, 0::2] + numbers[:, 1::2] == before).all()
