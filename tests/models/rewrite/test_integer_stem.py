"""A first convolution of bytes over blocks of pixels keeps its results; and the refusals."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.problems.precision import BYTE, Precision
from models.graph import Conv, Dequantize, Graph, Grid, Node, Quantize
from models.rewrite import RULES_OF_INTEGERS, RewriteResult, rewrite
from tests.support.models.graphs import GraphBuilder
from tests.support.models.reference import run_reference

_STORED = replace(BYTE, scale=0.02, zero_point=117)
_TO = replace(BYTE, scale=0.5, zero_point=128)


def stem(
    c: int,
    size: tuple[int, int],
    kernel: int,
    stride: int = 2,
    pad: int = 0,
    twice: bool = False,
    dilation: int = 1,
) -> Graph:
    """Return Quantize, a convolution, Quantize; with `twice`, the bytes are read once more."""
    b = GraphBuilder(0, x=(c, *size))
    q = b.add(Quantize, "q", b.shapes["x"], x="x")
    d = b.add(Dequantize, "d", b.shapes["x"], x=q)
    y = b.conv("c", d, 8, kernel, stride=stride, pad=pad, dilation=dilation)
    conv = b.nodes[-1]
    assert isinstance(conv, Conv)
    numbers = np.random.default_rng(1).integers(-127, 128, b.weights[conv.weight].shape)
    grid = Grid(numbers.astype(np.int32), np.array([0.01], np.float32))
    b.weights[conv.weight] = grid.weight
    y = b.add(Quantize, "y", b.shapes[y], x=y)
    y = b.add(Dequantize, "z", b.shapes[y], x=y)
    if twice:
        other = b.conv("e", d, 8, kernel, stride=stride, pad=pad)
        y = b.concat("both", y, other)
    graph = b.build(y)
    stored = {"q": _STORED, "y": _TO}
    values = {
        name: replace(value, stored=stored.get(name, value.stored))
        for name, value in graph.values.items()
    }
    return replace(graph, values=values, grids={conv.weight: grid})


def rewritten(graph: Graph) -> RewriteResult:
    """Rewrite, and compare the result with the reference."""
    result = rewrite(graph, RULES_OF_INTEGERS)
    x = np.random.default_rng(3).normal(size=(2, *graph.shape("x")))
    before, after = (
        run_reference(each, {"x": x})[each.outputs[0]] for each in (graph, result.graph)
    )
    np.testing.assert_allclose(after, before, atol=1e-9)
    assert len(np.unique(after)) > 8
    return result


def reasons(result: RewriteResult) -> str:
    return "; ".join(each.reason for each in result.refused if each.rule == "integer_stem")


def first(result: RewriteResult) -> tuple[Node, Node]:
    quantize, conv, *_ = result.graph.nodes
    return quantize, conv


@pytest.mark.parametrize("c", [1, 3, 4])
@pytest.mark.parametrize(("kernel", "pad"), [(7, 3), (3, 0), (3, 1), (4, 2), (2, 0), (5, 1)])
def test_blocks_of_pixels_have_the_same_convolution(c: int, kernel: int, pad: int) -> None:
    quantize, conv = first(rewritten(stem(c, (12, 10), kernel, pad=pad)))
    assert isinstance(quantize, Quantize)
    assert quantize.block == 2
    assert isinstance(conv, Conv)
    assert conv.problem.precision is Precision.INT8
    assert (conv.problem.c, conv.problem.window.strides) == (16, (1, 1))
    assert conv.problem.window.input == (6, 5)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (stem(3, (11, 10), 3), "does not consist of blocks of 2x2 pixels"),
        (stem(5, (12, 10), 3), ""),
        (stem(3, (12, 10), 3, stride=1), ""),
        (stem(3, (12, 10), 1), ""),
        (stem(3, (20, 24), 3, pad=2, dilation=2), ""),
        (stem(3, (12, 10), 3, twice=True), "q is also read by"),
    ],
    ids=["odd", "channels", "stride", "pixel", "dilation", "readers"],
)
def test_others_stay_as_they_are(graph: Graph, reason: str) -> None:
    result = rewritten(graph)
    assert reason in reasons(result)
    assert bool(reason) == bool(reasons(result))
    assert all(node.block == 1 for node in result.graph.nodes if isinstance(node, Quantize))
