"""A 1×1 Conv takes over the operators that normalise, or scale and shift, its input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from models.graph import Conv, Graph, Normalise, Shape
from models.precision import at_precision
from models.rewrite import RULES_AT_A_PRECISION, RewriteResult, rewrite
from tests.support.models.graphs import GraphBuilder, kinds, refusals
from tests.support.models.reference import run_reference

SHAPE = (6, 4, 5)
MUL = BinaryOp.MUL
SILU = Activation(ActivationKind.SILU)


def layer_norm(
    b: GraphBuilder, y: str, x: str, weights: Shape = (6, 1, 1), **fields: object
) -> str:
    scale, shift = b.noise(f"{y}.g", weights), b.noise(f"{y}.h", weights)
    normal = {"axes": (0,), "epsilon": 0.1, **fields}
    return b.add(Normalise, y, b.shapes[x], x=x, scale=scale, shift=shift, **normal)


def fused(graph: Graph, precision: Precision = Precision.FP32) -> RewriteResult:
    """Return the rewritten graph, after checking that it is bit-identical to the one without
    prologues."""
    before = at_precision(rewrite(graph).graph, precision)
    result = rewrite(before, RULES_AT_A_PRECISION)
    images = {"x": np.random.default_rng(0).normal(0, 1, (2, *SHAPE))}
    expected, made = (run_reference(each, images) for each in (before, result.graph))
    assert all(np.array_equal(expected[name], made[name]) for name in expected)
    return result


@pytest.mark.parametrize("weights", [(), (1,), (1, 1, 1), (6, 1, 1)], ids=str)
@pytest.mark.parametrize("activation", [None, SILU])
def test_a_normalisation_over_the_channels_is_a_prologue(
    weights: Shape, activation: Activation | None
) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", layer_norm(b, "n", "x", weights, activation=activation), kernel=1)
    result = fused(b.build("y"))
    (conv,) = result.graph.nodes
    assert isinstance(conv, Conv)
    assert conv.problem.prologue == Prologue(0.1, activation)
    assert conv.scale is not None
    expected = np.broadcast_to(b.weights["n.g"].reshape(-1), 6)
    assert np.array_equal(result.graph.weights[conv.scale], expected)
    assert [step.rule for step in result.made_by("conv_y")] == ["fuse_prologue"]


@pytest.mark.parametrize("activation", [RELU, SILU])
def test_a_scale_shift_with_an_activation_is_a_prologue(activation: Activation) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.scale_shift("n", "x", activation), kernel=1)
    (conv,) = fused(b.build("y")).graph.nodes
    assert isinstance(conv, Conv)
    assert conv.problem.prologue == Prologue(None, activation)
    assert conv.x == "x"


def test_each_of_several_readers_computes_it_anew() -> None:
    b = GraphBuilder(x=SHAPE)
    n = b.scale_shift("n", "x", RELU)
    b.binary("y", MUL, b.conv("c", n, kernel=1), b.conv("d", n, kernel=1, activation=SILU))
    assert kinds(fused(b.build("y"))) == ["Conv", "Conv", "Binary"]


def test_siblings_after_one_prologue_are_one() -> None:
    b = GraphBuilder(x=SHAPE)
    n = b.scale_shift("n", "x", RELU)
    b.binary("y", MUL, b.conv("c", n, kernel=1), b.conv("d", n, kernel=1))
    assert kinds(fused(b.build("y"))) == ["Conv", "Slice", "Slice", "Binary"]


def two_in_a_row(b: GraphBuilder) -> None:
    n = layer_norm(b, "n", "x")
    b.conv("y", b.scale_shift("m", n, RELU), kernel=1)
    b.conv("z", n, 8, 1)


def as_another_output(b: GraphBuilder) -> None:
    b.conv("y", b.scale_shift("z", "x", RELU), kernel=1)


def with_another_reader(b: GraphBuilder) -> None:
    n = b.scale_shift("n", "x", RELU)
    b.conv("y", n, kernel=1)
    b.transpose("z", n, 0, 2, 1)


def as_a_residual(b: GraphBuilder) -> None:
    n = b.scale_shift("n", "x", RELU)
    b.conv("y", n, 6, 1, residual=n)
    b.identity("z", "y")


def in_a_concatenation(b: GraphBuilder) -> None:
    n = b.scale_shift("n", "x", RELU)
    b.conv("y", n, kernel=1)
    b.concat("z", n, b.pool("p", "x", PoolKind.MAX, 1))


def before_a_window(b: GraphBuilder) -> None:
    b.conv("z", b.conv("y", b.scale_shift("n", "x", RELU)))


def before_a_stride(b: GraphBuilder) -> None:
    b.conv("z", b.conv("y", b.scale_shift("n", "x", RELU), kernel=1, stride=2))


def before_groups(b: GraphBuilder) -> None:
    b.conv("z", b.conv("y", b.scale_shift("n", "x", RELU), kernel=1, groups=2))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (two_in_a_row, "conv_y has a prologue already"),
        (as_another_output, "z is an output of the network"),
        (with_another_reader, "n is also read by transpose_z"),
        (as_a_residual, "n is also read by conv_y"),
        (in_a_concatenation, "n is stored in z"),
        (before_a_window, "gemm cannot run conv_y with this prologue: kernel 3x3; supported: 1x1"),
        (
            before_a_stride,
            "gemm cannot run conv_y with this prologue: stride 2x2; supported: stride 1",
        ),
        (before_groups, "gemm cannot run conv_y with this prologue: groups 2; supported: 1 group"),
    ],
)
def test_a_value_that_must_exist_stays(case: Callable[[GraphBuilder], None], reason: str) -> None:
    b = GraphBuilder(x=SHAPE)
    case(b)
    result = fused(b.build("y", "z"))
    assert reason in refusals(result, "fuse_prologue").values()


@pytest.mark.parametrize(
    "fields",
    [{"axes": (1, 2)}, {"axes": (0, 1, 2)}, {"axes": (0,), "groups": 2}, {"weights": (4, 5)}],
    ids=str,
)
def test_other_normalisations_stay(fields: dict[str, Any]) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", layer_norm(b, "n", "x", **fields), kernel=1)
    result = fused(b.build("y"))
    assert kinds(result) == ["Normalise", "Conv"]
    assert refusals(result, "fuse_prologue") == {}


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        (Precision.TF32, "the prologue ScaleShift, Relu in tf32; supported: fp32"),
        (Precision.TF32X3, "the prologue ScaleShift, Relu in 3xtf32; supported: fp32"),
        (Precision.FP16, "float16 tensors; supported: float32"),
    ],
)
def test_tensor_cores_take_no_prologue(precision: Precision, reason: str) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.scale_shift("n", "x", RELU), kernel=1)
    result = fused(b.build("y"), precision)
    assert kinds(result) == ["ScaleShift", "Conv"]
    expected = {"conv_y": f"gemm cannot run conv_y with this prologue: {reason}"}
    assert refusals(result, "fuse_prologue") == expected
