"""Operations between Dequantize and Quantize that only move or select numbers work on bytes."""

import pytest

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Concat, Dequantize, Identity, Pool, Quantize
from tests.support.models.byte_graphs import (
    COARSE,
    FINE,
    ByteBuilder,
    of_bytes,
    reasons,
    rewritten_bytes,
)


def test_what_moves_bytes_between_different_scales_reads_bytes_of_its_own_scale() -> None:
    to = ByteBuilder()
    y = to.b.pool("m", to.dequantize(to.quantize("q", "x")), PoolKind.MAX, 3, pad=1)
    result = rewritten_bytes(to.build(to.dequantize(to.quantize("y", y, COARSE))))
    of_pixels, again, maximum = of_bytes(result)
    assert isinstance(again, Quantize)
    assert (of_pixels.output, again.x) == ("q", "q")
    assert isinstance(maximum, Pool)
    assert (maximum.x, maximum.output) == (again.output, "y")
    assert result.graph.values[again.output].stored == COARSE


def test_parts_of_different_scales_are_quantized_again_where_they_are_joined() -> None:
    to = ByteBuilder()
    x = to.dequantize(to.quantize("q", "x"))
    parts = [
        to.dequantize(to.quantize(f"{name}8", to.conv(name, x), stored))
        for name, stored in (("a", FINE), ("b", COARSE), ("c", FINE))
    ]
    graph = to.build(to.dequantize(to.quantize("y", to.b.concat("cc", *parts), COARSE)))
    result = rewritten_bytes(graph)
    read = [node.x for node in of_bytes(result) if isinstance(node, Quantize)]
    assert sorted(read) == ["a8", "c8", "x"]  # b8 is stored as y is
    # Each part is written to its place.
    assert not any(isinstance(node, Concat | Identity) for node in result.graph.nodes)
    inside = [v.inside for v in result.graph.values.values() if v.inside is not None]
    assert sorted((each.parent, each.offset) for each in inside) == [("y", 0), ("y", 8), ("y", 16)]
    assert "b8" in {value.name for value in result.graph.values.values() if value.inside}


def test_bytes_that_are_quantized_again_to_another_scale_never_become_floats() -> None:
    to = ByteBuilder()
    again = to.quantize("again", to.dequantize(to.quantize("q", "x")), COARSE)
    result = rewritten_bytes(to.build(to.dequantize(again)))
    assert [node.output for node in of_bytes(result)] == ["q", "again"]
    assert [type(node) for node in result.graph.nodes] == [Quantize, Quantize, Dequantize]


def test_bytes_that_are_quantized_again_alike_are_themselves() -> None:
    to = ByteBuilder()
    again = to.quantize("again", to.dequantize(to.quantize("q", "x")))
    result = rewritten_bytes(to.build(to.dequantize(again)))
    assert [node.output for node in of_bytes(result)] == ["q"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("average", "pool_m averages in float"),
        ("float", "x, which pool_m reads, is not quantized"),
        ("reader", "m is also read by binary_both"),
    ],
)
def test_another_operation_stays_in_float_and_says_why(change: str, reason: str) -> None:
    to = ByteBuilder()
    x = "x" if change == "float" else to.dequantize(to.quantize("q", "x"))
    kind = PoolKind.AVERAGE if change == "average" else PoolKind.MAX
    y = to.dequantize(to.quantize("y", to.b.pool("m", x, kind, 3, pad=1)))
    if change == "reader":
        y = to.b.binary("both", BinaryOp.MUL, y, "m")
    result = rewritten_bytes(to.build(y))
    assert not any(isinstance(node, Pool) for node in of_bytes(result))
    assert reason in reasons(result)
