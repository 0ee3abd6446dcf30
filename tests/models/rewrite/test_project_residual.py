"""The Conv that adds a residual also computes the 1×1 convolution that produces it."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.problems.activation import RELU
from kernels.problems.conv import Projection
from kernels.problems.precision import Precision
from models.graph import Conv, Graph
from models.plan import build_plan
from models.precision import at_precision
from models.rewrite import RULES_AT_A_PRECISION, RewriteResult, rewrite
from tests.support.models.engines import H200_CHOICE, classifier_of
from tests.support.models.graphs import GraphBuilder, kinds
from tests.support.models.plans import check_operands
from tests.support.models.reference import run_reference

SHAPE = (12, 7, 8)


def projected(graph: Graph, precision: Precision = Precision.FP16) -> RewriteResult:
    return rewrite(at_precision(graph, precision), RULES_AT_A_PRECISION)


def block(stride: int | tuple[int, int] = 2, bias: bool = True) -> GraphBuilder:
    """Return a bottleneck of ResNet at which the size changes; "first" is projected."""
    b = GraphBuilder(x=SHAPE)
    first = b.conv("first", "x", 20, activation=RELU)
    three = b.conv("three", first, 16, stride=stride, activation=RELU)
    shortcut = b.conv("shortcut", first, 40, 1, stride=stride, bias=bias)
    b.conv("sum", three, 40, 1, residual=shortcut, activation=RELU)
    return b


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.TF32X3, Precision.FP16])
@pytest.mark.parametrize("stride", [1, 2, (1, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_projected_residual_gives_the_same_sum_in_one_conv_less(
    precision: Precision, stride: int | tuple[int, int], bias: bool
) -> None:
    graph = block(stride, bias).build("sum")
    before = at_precision(graph, precision)
    result = projected(graph, precision)
    assert kinds(result) == ["Conv"] * 3
    last = result.graph.nodes[-1]
    assert isinstance(last, Conv)
    assert last.residual == "first"
    strides = stride if isinstance(stride, tuple) else (stride, stride)
    assert last.problem.projection == Projection(20, (7, 8), strides)
    assert last.activation == RELU
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    (wanted,) = run_reference(before, {"x": images}).values()
    (made,) = run_reference(result.graph, {"x": images}).values()
    # Of a shortcut that is stored as halves the sum has one rounding less.
    bound = 2.0**-10 if precision is Precision.FP16 else 1e-6
    np.testing.assert_allclose(made, wanted, rtol=bound, atol=bound * np.abs(wanted).max())


def test_in_fp32_nothing_is_projected() -> None:
    assert kinds(projected(block().build("sum"), Precision.FP32)) == ["Conv"] * 4


def test_a_plan_never_writes_over_what_is_projected() -> None:
    b = GraphBuilder(x=(16, 6, 6))
    first = b.conv("first", "x", 16, activation=RELU)
    shortcut = b.conv("shortcut", first, 16, 1)
    y = b.conv("y", b.conv("three", first, 16), 16, 1, residual=shortcut)
    graph = b.build(b.gemm("scores", b.reshape("flat", y, (16 * 36,))))
    classifier = replace(classifier_of(graph), precision=Precision.FP16)
    plan = build_plan(classifier.rewritten.graph, classifier.preprocessing, 2, H200_CHOICE)
    check_operands(plan)
    (step,) = (each for each in plan.steps if "residual" in each.operands)
    assert step.operands["residual"] != step.operands["y"]


@pytest.mark.parametrize(
    ("shortcut", "conv", "reason"),
    [
        ({"kernel": 3}, {}, "conv_shortcut is not a 1×1 convolution with one group"),
        ({}, {"kernel": 3}, "conv_y is not a 1×1 convolution with one group"),
        ({"groups": 2}, {}, "conv_shortcut is not a 1×1 convolution with one group"),
        ({"activation": RELU}, {}, "conv_shortcut has the activation Relu"),
        ({"residual": "x"}, {}, "conv_shortcut already adds x"),
        ({"pad": 1, "kernel": 1}, {}, "conv_shortcut has padding"),
    ],
    ids=["3x3", "to 3x3", "groups", "activation", "residual", "padding"],
)
def test_why_a_shortcut_stays(
    shortcut: dict[str, object], conv: dict[str, object], reason: str
) -> None:
    b = GraphBuilder(x=SHAPE)
    size = {"pad": 1} if "pad" in shortcut else {}  # so that both are of one size
    residual = b.conv("shortcut", "x", **{"k": 12, "kernel": 1} | shortcut)  # type: ignore[arg-type]
    b.conv("y", "x", **{"k": 12, "kernel": 1} | size | conv, residual=residual)  # type: ignore[arg-type]
    result = projected(b.build("y"))
    assert kinds(result) == ["Conv", "Conv"]
    assert [each.reason for each in result.refused] == [reason]


def test_a_shortcut_that_others_read_stays() -> None:
    b = GraphBuilder(x=SHAPE)
    residual = b.conv("shortcut", "x", 12, 1)
    b.conv("y", "x", 12, 1, residual=residual)
    b.conv("z", residual, 12, residual="y")
    result = projected(b.build("z"))
    assert "shortcut is also read by conv_z" in [each.reason for each in result.refused]


def test_a_shortcut_in_another_precision_stays() -> None:
    graph = at_precision(block().build("sum"), Precision.TF32)
    nodes = [
        replace(node, problem=replace(node.problem, precision=Precision.FP32))
        if isinstance(node, Conv) and node.output == "shortcut"
        else node
        for node in graph.nodes
    ]
    result = rewrite(replace(graph, nodes=tuple(nodes)), RULES_AT_A_PRECISION)
    assert [each.reason for each in result.refused] == ["conv_shortcut is computed in fp32"]
