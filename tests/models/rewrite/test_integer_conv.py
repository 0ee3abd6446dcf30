"""Rules that convert the nodes between Dequantize and Quantize to bytes, and their refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import BYTE, Precision, Storage
from models.graph import (
    Activate,
    Binary,
    ChannelShuffle,
    Concat,
    Conv,
    Dequantize,
    Gemm,
    Graph,
    Grid,
    Identity,
    Node,
    Pool,
    Quantize,
)
from models.rewrite import RULES, RULES_OF_INTEGERS, RewriteResult, rewrite
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference

_FINE = replace(BYTE, scale=0.02, zero_point=128)
_COARSE = replace(BYTE, scale=0.05, zero_point=3)


class _Bytes:
    """A builder of nodes between bytes; it keeps a Quantize's storage until the graph is built."""

    def __init__(self) -> None:
        self.b = GraphBuilder(0, x=(8, 6, 6))
        self.stored: dict[str, Storage] = {}
        self.grids: dict[str, Grid] = {}

    def quantize(self, output: str, x: str, stored: Storage = _FINE) -> str:
        self.stored[output] = stored
        return self.b.add(Quantize, output, self.b.shapes[x], x=x)

    def dequantize(self, x: str) -> str:
        return self.b.add(Dequantize, f"{x}'", self.b.shapes[x], x=x)

    def conv(self, output: str, x: str, k: int = 8, **options: Any) -> str:
        made = self.b.conv(output, x, k, 1, **options)
        node = self.b.nodes[-1]
        assert isinstance(node, Conv)
        self.to_grid(node.weight)
        return made

    def to_grid(self, weight: str, most: int = 127) -> None:
        shape = self.b.weights[weight].shape
        numbers = np.random.default_rng(1).integers(-most, most + 1, shape).astype(np.int32)
        numbers.flat[0] = most
        self.grids[weight] = Grid(numbers, np.array([0.001], np.float32))
        self.b.weights[weight] = self.grids[weight].weight

    def build(self, output: str) -> Graph:
        graph = self.b.build(output)
        values = {
            name: replace(value, stored=self.stored.get(name, value.stored))
            for name, value in graph.values.items()
        }
        return replace(graph, values=values, grids=self.grids)


def _rewritten(graph: Graph) -> RewriteResult:
    """Rewrite, and compare the result with the reference: equal except for rounding at a border."""
    result = rewrite(graph, RULES_OF_INTEGERS)
    x = np.random.default_rng(3).normal(size=(2, 8, 6, 6))
    before, after = (
        run_reference(each, {"x": x})[each.outputs[0]] for each in (graph, result.graph)
    )
    assert np.abs(before - after).max() < 1e-9
    return result


def _of_bytes(result: RewriteResult) -> list[Node]:
    graph = result.graph
    return [node for node in graph.nodes if graph.values[node.output].stored.dtype == BYTE.dtype]


def _reasons(result: RewriteResult) -> str:
    return "; ".join(refusal.reason for refusal in result.refused)


def test_a_convolution_between_bytes_is_one_of_bytes() -> None:
    to = _Bytes()
    x = to.dequantize(to.quantize("q", "x"))
    to.b.activate("r", to.conv("c", x), RELU)
    graph = to.build(to.dequantize(to.quantize("y", "r", _COARSE)))
    _, conv, last = _rewritten(graph).graph.nodes
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


def test_a_sum_joins_the_convolution_ahead_of_it_rounded_as_that_is() -> None:
    to = _Bytes()
    x = to.dequantize(to.quantize("q", "x"))
    c = to.dequantize(to.quantize("c8", to.conv("c", x), _COARSE))
    to.b.activate("r", to.b.binary("s", BinaryOp.ADD, c, x), RELU)
    graph = to.build(to.dequantize(to.quantize("y", "r")))
    _, conv, _ = _rewritten(graph).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.residual, conv.rounded, conv.activation) == ("q", _COARSE, RELU)


def test_a_sum_without_bytes_between_is_a_residual_that_nothing_rounds() -> None:
    to = _Bytes()
    x = to.dequantize(to.quantize("q", "x"))
    graph = to.build(
        to.dequantize(to.quantize("y", to.b.binary("s", BinaryOp.ADD, to.conv("c", x), x)))
    )
    _, conv, _ = _rewritten(graph).graph.nodes
    assert isinstance(conv, Conv)
    assert (conv.residual, conv.rounded) == ("q", None)


def test_a_sum_that_no_convolution_takes_adds_bytes() -> None:
    to = _Bytes()
    q = to.quantize("q", "x")
    pooled = to.quantize("p", to.b.pool("m", to.dequantize(q), PoolKind.MAX, 3, pad=1))
    y = to.b.binary("s", BinaryOp.ADD, to.dequantize(pooled), "q'")
    result = _rewritten(to.build(to.dequantize(to.quantize("y", y, _COARSE))))
    assert [type(node) for node in _of_bytes(result)] == [Quantize, Pool, Binary]


def test_a_fully_connected_layer_multiplies_bytes() -> None:
    to = _Bytes()
    flat = to.b.reshape("f", to.dequantize(to.quantize("q", "x")), (8 * 36,))
    made = to.b.gemm("g", to.dequantize(to.quantize("f8", flat)), 5)
    gemm = to.b.nodes[-1]
    assert isinstance(gemm, Gemm)
    to.to_grid(gemm.weight)
    result = _rewritten(to.build(to.dequantize(to.quantize("y", made))))
    (found,) = (node for node in _of_bytes(result) if isinstance(node, Gemm))
    assert found.output == "y"
    assert found.weight in result.graph.grids  # not permuted


def test_a_fully_connected_layer_of_several_rows_an_image_stays_in_float() -> None:
    to = _Bytes()
    rows = to.b.reshape("f", to.dequantize(to.quantize("q", "x")), (16, 18))
    made = to.b.gemm("g", to.dequantize(to.quantize("f8", rows)), 5)
    gemm = to.b.nodes[-1]
    assert isinstance(gemm, Gemm)
    to.to_grid(gemm.weight)
    result = _rewritten(to.build(to.dequantize(to.quantize("y", made))))
    assert not any(isinstance(node, Conv | Gemm) for node in _of_bytes(result))
    (layer,) = (node for node in result.graph.nodes if isinstance(node, Conv))
    assert layer.problem.precision is not Precision.INT8


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("weights", "the filter of conv_c, is not quantized"),
        ("activation", "conv_c ends in Tanh"),
        ("reader", "c is also read by"),
        ("input", "x, which conv_c reads, is not quantized"),
        ("bias", "exceeds 32 bits"),
    ],
)
def test_a_convolution_that_is_not_whole_stays_in_float_and_says_why(
    change: str, reason: str
) -> None:
    to = _Bytes()
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
    assert reason in _reasons(result)


@pytest.mark.parametrize("groups", [1, 2])
def test_numbers_of_9_bits_are_two_bytes_which_both_multiply(groups: int) -> None:
    to = _Bytes()
    y = to.conv("c", to.dequantize(to.quantize("q", "x")), bias=True, groups=groups)
    conv = to.b.nodes[-1]
    assert isinstance(conv, Conv)
    to.to_grid(conv.weight, 200)
    result = _rewritten(to.build(to.dequantize(to.quantize("y", y))))
    kinds = [type(node) for node in _of_bytes(result)]
    assert kinds == [Quantize, Identity, ChannelShuffle, Conv]  # joined in place
    (whole,) = (node for node in result.graph.nodes if isinstance(node, Conv))
    numbers = result.graph.grids[whole.weight].numbers
    assert np.abs(numbers).max() <= 128
    before = to.grids[conv.weight].numbers
    assert (numbers[:, 0::2] + numbers[:, 1::2] == before).all()


_TANH = Activation(ActivationKind.TANH)


def test_what_moves_bytes_between_different_scales_reads_bytes_of_its_own_scale() -> None:
    to = _Bytes()
    y = to.b.pool("m", to.dequantize(to.quantize("q", "x")), PoolKind.MAX, 3, pad=1)
    result = _rewritten(to.build(to.dequantize(to.quantize("y", y, _COARSE))))
    of_pixels, again, maximum = _of_bytes(result)
    assert isinstance(again, Quantize)
    assert (of_pixels.output, again.x) == ("q", "q")
    assert isinstance(maximum, Pool)
    assert (maximum.x, maximum.output) == (again.output, "y")
    assert result.graph.values[again.output].stored == _COARSE


def test_parts_of_different_scales_are_quantized_again_where_they_are_joined() -> None:
    to = _Bytes()
    x = to.dequantize(to.quantize("q", "x"))
    parts = [
        to.dequantize(to.quantize(f"{name}8", to.conv(name, x), stored))
        for name, stored in (("a", _FINE), ("b", _COARSE), ("c", _FINE))
    ]
    graph = to.build(to.dequantize(to.quantize("y", to.b.concat("cc", *parts), _COARSE)))
    result = _rewritten(graph)
    read = [node.x for node in _of_bytes(result) if isinstance(node, Quantize)]
    assert sorted(read) == ["a8", "c8", "x"]  # b8 is stored as y is
    # Each part is written to its place.
    assert not any(isinstance(node, Concat | Identity) for node in result.graph.nodes)
    inside = [v.inside for v in result.graph.values.values() if v.inside is not None]
    assert sorted((each.parent, each.offset) for each in inside) == [("y", 0), ("y", 8), ("y", 16)]
    assert "b8" in {value.name for value in result.graph.values.values() if value.inside}


def test_bytes_that_are_quantized_again_to_another_scale_never_become_floats() -> None:
    to = _Bytes()
    again = to.quantize("again", to.dequantize(to.quantize("q", "x")), _COARSE)
    result = _rewritten(to.build(to.dequantize(again)))
    assert [node.output for node in _of_bytes(result)] == ["q", "again"]
    assert [type(node) for node in result.graph.nodes] == [Quantize, Quantize, Dequantize]


def test_bytes_that_are_quantized_again_alike_are_themselves() -> None:
    to = _Bytes()
    again = to.quantize("again", to.dequantize(to.quantize("q", "x")))
    result = _rewritten(to.build(to.dequantize(again)))
    assert [node.output for node in _of_bytes(result)] == ["q"]
