"""A sum between Dequantize and Quantize adds bytes, in a convolution if possible."""

from dataclasses import replace

import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Binary, Conv, Pool, Quantize
from tests.support.models.byte_graphs import COARSE, ByteBuilder, of_bytes, reasons, rewritten_bytes


def test_a_sum_joins_the_convolution_ahead_of_it_rounded_as_that_is() -> None:
    to = ByteBuilder()
    x = to.dequantize(to.quantize("q", "x"))
    c = to.dequantize(to.quantize("c8", to.conv("c", x), COARSE))
    to.b.activate("r", to.b.binary("s", BinaryOp.ADD, c, x), RELU)
    graph = to.build(to.dequantize(to.quantize("y", "r")))
    _, conv, _ = rewritten_bytes(graph).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.residual, conv.rounded, conv.activation) == ("q", COARSE, RELU)


def test_a_sum_without_bytes_between_is_a_residual_that_nothing_rounds() -> None:
    to = ByteBuilder()
    x = to.dequantize(to.quantize("q", "x"))
    graph = to.build(
        to.dequantize(to.quantize("y", to.b.binary("s", BinaryOp.ADD, to.conv("c", x), x)))
    )
    _, conv, _ = rewritten_bytes(graph).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.residual, conv.rounded) == ("q", None)


def test_a_sum_that_no_convolution_takes_adds_bytes() -> None:
    to = ByteBuilder()
    q = to.quantize("q", "x")
    pooled = to.quantize("p", to.b.pool("m", to.dequantize(q), PoolKind.MAX, 3, pad=1))
    y = to.b.binary("s", BinaryOp.ADD, to.dequantize(pooled), "q'")
    result = rewritten_bytes(to.build(to.dequantize(to.quantize("y", y, COARSE))))
    assert [type(node) for node in of_bytes(result)] == [Quantize, Pool, Binary]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("product", "binary_s computes Mul in float"),
        ("activation", "binary_s has the activation Tanh, which does more than clamp"),
        ("reader", "s is also read by binary_both"),
        ("float", "x, which binary_s adds, is not quantized"),
        ("broadcast", "differ in shape, so the sum broadcasts"),
    ],
)
def test_another_sum_stays_in_float_and_says_why(change: str, reason: str) -> None:
    to = ByteBuilder()
    a = to.dequantize(to.quantize("q", "x"))
    b = to.dequantize(to.quantize("p", to.b.pool("m", a, PoolKind.MAX, 3, pad=1)))
    if change == "float":
        b = "x"
    if change == "broadcast":
        b = to.dequantize(to.quantize("w", to.b.pool("v", a, PoolKind.MAX, 6)))
    y = to.b.binary("s", BinaryOp.MUL if change == "product" else BinaryOp.ADD, a, b)
    if change == "activation":
        add = to.b.nodes[-1]
        assert isinstance(add, Binary)
        to.b.nodes[-1] = replace(add, activation=Activation(ActivationKind.TANH))
    y = to.dequantize(to.quantize("y", y))
    if change == "reader":
        y = to.b.binary("both", BinaryOp.MUL, y, "s")
    result = rewritten_bytes(to.build(y))
    assert not any(isinstance(node, Binary) for node in of_bytes(result))
    assert reason in reasons(result)
