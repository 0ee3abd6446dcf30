"""ScaleShift, in every form that exporters give it, melts into the nodes beside it."""

from typing import Any

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from models.graph import Conv, Gemm, ScaleShift, Shape
from models.rewrite import Rewritten, rewrite
from tests.models.rewrite.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (4, 6, 6)
CHANNELS = np.array([0.5, -1.0, 2.0, 1.5])


def only_scale_shift(result: Rewritten) -> tuple[ScaleShift, Any, Any]:
    (node,) = result.graph.nodes
    assert isinstance(node, ScaleShift)
    return node, result.graph.weights[node.scale], result.graph.weights[node.shift]


@pytest.mark.parametrize("shape", [(4, 1, 1), (), (1,), (1, 1, 1)])
@pytest.mark.parametrize(
    ("op", "weight_first", "scale", "shift"),
    [
        (BinaryOp.ADD, False, lambda w: 1 + 0 * w, lambda w: w),
        (BinaryOp.ADD, True, lambda w: 1 + 0 * w, lambda w: w),
        (BinaryOp.SUB, False, lambda w: 1 + 0 * w, lambda w: -w),
        (BinaryOp.SUB, True, lambda w: -1 + 0 * w, lambda w: w),
        (BinaryOp.MUL, False, lambda w: w, lambda w: 0 * w),
        (BinaryOp.MUL, True, lambda w: w, lambda w: 0 * w),
        (BinaryOp.DIV, False, lambda w: 1 / w, lambda w: 0 * w),
    ],
)
def test_arithmetic_with_constants_a_channel_is_a_scale_shift(
    op: BinaryOp, weight_first: bool, scale: Any, shift: Any, shape: Shape
) -> None:
    numbers = CHANNELS if shape[:1] == (4,) else CHANNELS[:1]
    b = GraphBuilder(x=SHAPE)
    w = b.weight("w", numbers.reshape(shape))
    b.binary("y", op, *((w, "x") if weight_first else ("x", w)))
    _, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    w4 = np.broadcast_to(numbers, 4)
    np.testing.assert_array_equal(s, scale(w4).astype(np.float32))
    np.testing.assert_array_equal(t, shift(w4).astype(np.float32))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (4, 6, 1), (4, 6, 6), (1, 6, 6)])
def test_constants_that_vary_within_a_channel_are_left_alone(shape: Shape) -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.MUL, "x", b.noise("w", shape))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Binary"]
    assert result.refused == ()


def test_constants_that_broaden_the_value_are_left_alone() -> None:
    b = GraphBuilder(x=(1, 6, 6))
    b.binary("y", BinaryOp.ADD, "x", b.noise("w", (4, 1, 1)))
    assert kinds(rewritten(b.build("y"))) == ["Binary"]


def test_a_constant_divided_by_a_value_is_left_alone() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.DIV, 1.0, b.activate("e", "x", Activation(ActivationKind.SIGMOID)))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Activate", "Binary"]
    assert result.refused == ()


def test_division_by_zero_is_refused() -> None:
    b = GraphBuilder(x=SHAPE)
    b.binary("y", BinaryOp.DIV, "x", b.weight("w", [[[1.0]], [[0.0]], [[2.0]], [[3.0]]]))
    result = rewrite(b.build("y"))
    assert kinds(result) == ["Binary"]
    assert refusals(result, "canonical_scale_shift") == {"binary_y": "w contains zero"}


def test_two_in_a_row_are_one() -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.scale_shift("n", "x"), RELU)
    node, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    w = {name: array.astype(np.float64) for name, array in b.weights.items()}
    np.testing.assert_array_equal(s, np.float32(w["y.s"] * w["n.s"]))
    np.testing.assert_array_equal(t, np.float32(w["y.s"] * w["n.t"] + w["y.t"]))
    assert node.activation == RELU


def test_two_with_an_activation_between_stay_two() -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.scale_shift("n", "x", RELU))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["ScaleShift", "ScaleShift"]
    assert refusals(result, "merge_scale_shifts") == {"scaleshift_y": "scaleshift_n ends in Relu"}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_one_after_a_conv_melts_into_it(groups: int, bias: bool) -> None:
    b = GraphBuilder(x=SHAPE)
    b.scale_shift("y", b.conv("c", "x", k=8, groups=groups, bias=bias), RELU)
    result = rewritten(b.build("y"), rounds=True)
    (conv,) = result.graph.nodes
    assert isinstance(conv, Conv)
    assert conv.bias is not None
    assert conv.activation == RELU
    w = {name: array.astype(np.float64) for name, array in b.weights.items()}
    expected = w["y.s"] * w.get("c.b", 0) + w["y.t"]
    np.testing.assert_array_equal(result.graph.weights[conv.bias], np.float32(expected))


def test_one_after_a_3d_conv_melts_into_it() -> None:
    b = GraphBuilder(x=(2, 3, 4, 4))
    b.scale_shift("y", b.conv("c", "x"))
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Conv"]


def test_one_after_a_gemm_melts_into_it() -> None:
    b = GraphBuilder(x=(6,))
    b.scale_shift("y", b.gemm("g", "x"))
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Gemm"]


def test_a_matmul_and_its_bias_are_one_gemm() -> None:
    b = GraphBuilder(x=(6,))
    b.binary("y", BinaryOp.ADD, b.gemm("g", "x", bias=False), b.noise("w", (5,)))
    (gemm,) = rewritten(b.build("y"), rounds=True).graph.nodes
    assert isinstance(gemm, Gemm)


def test_a_filter_that_two_convs_share_is_folded_for_each_alone() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("c", "x")
    b.conv("d", "x")
    b.nodes[1] = b.nodes[1].renamed({"d.w": "c.w"})
    b.scale_shift("y", "c")
    result = rewritten(b.build("y", "d"), rounds=True)
    assert kinds(result) == ["Conv", "Conv"]


def refused_fold(case: str) -> GraphBuilder:
    b = GraphBuilder(x=SHAPE)
    match case:
        case "activation":
            b.conv("c", "x", k=4, activation=RELU)
        case "residual":
            b.conv("c", "x", k=4, residual="x")
        case _:
            b.conv("c", "x", k=4)
    b.scale_shift("y", "c")
    return b


@pytest.mark.parametrize(
    ("case", "outputs", "reason"),
    [
        ("activation", ("y",), "conv_c ends in Relu"),
        ("residual", ("y",), "conv_c adds x, which is scaled too"),
        ("output", ("y", "c"), "c is an output of the network"),
        ("read", ("y", "p"), "c is also read by transpose_p"),
    ],
)
def test_one_after_a_conv_stays(case: str, outputs: tuple[str, ...], reason: str) -> None:
    b = refused_fold(case)
    b.transpose("p", "c", 0, 2, 1)
    result = rewritten(b.build(*outputs))
    assert "ScaleShift" in kinds(result)
    assert refusals(result, "fold_scale_shift") == {"scaleshift_y": reason}


def test_one_along_another_axis_than_the_gemms_stays() -> None:
    b = GraphBuilder(x=(3, 6))
    b.scale_shift("y", b.gemm("g", "x"))
    result = rewritten(b.build("y"))
    assert refusals(result, "fold_scale_shift") == {
        "scaleshift_y": "gemm_g works along the last axis, the scaling along the first"
    }


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_one_before_a_conv_without_padding_melts_into_it(groups: int) -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.scale_shift("n", "x"), k=8, pad=0, groups=groups)
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Conv"]


def test_a_scaling_without_shift_melts_into_a_conv_that_pads() -> None:
    b = GraphBuilder(x=SHAPE)
    b.conv("y", b.binary("n", BinaryOp.MUL, "x", 0.5), k=8)
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Conv"]


def test_one_before_a_gemm_melts_into_it() -> None:
    b = GraphBuilder(x=(6,))
    b.gemm("y", b.scale_shift("n", "x"))
    assert kinds(rewritten(b.build("y"), rounds=True)) == ["Gemm"]


def refused_ahead(case: str) -> GraphBuilder:
    b = GraphBuilder(x=SHAPE)
    if case == "gemm":
        b.gemm("y", b.scale_shift("n", "x"))
        return b
    b.scale_shift("n", "x", RELU if case == "activation" else None)
    b.conv("y", "n", pad=1 if case == "padding" else 0)
    if case == "read":
        b.transpose("p", "n", 0, 2, 1)
    return b


@pytest.mark.parametrize(
    ("case", "outputs", "node", "reason"),
    [
        ("padding", ("y",), "conv_y", "conv_y pads with zeros, which scaleshift_n does not shift"),
        ("activation", ("y",), "conv_y", "scaleshift_n ends in Relu"),
        ("read", ("y", "p"), "conv_y", "n is also read by transpose_p"),
        (
            "gemm",
            ("y",),
            "gemm_y",
            "gemm_y works along the last axis, the scaling along the first",
        ),
    ],
)
def test_one_before_a_conv_or_gemm_stays(
    case: str, outputs: tuple[str, ...], node: str, reason: str
) -> None:
    result = rewritten(refused_ahead(case).build(*outputs))
    assert kinds(result)[0] == "ScaleShift"
    assert refusals(result, "fold_scale_shift_ahead") == {node: reason}


def test_channels_scaled_apart_are_scaled_together() -> None:
    # torchvision's GoogLeNet and Inception v3 normalise their input so.
    b = GraphBuilder(x=(3, 6, 6))
    scaled = []
    for c in range(3):
        b.reshape(f"g{c}", b.slice(f"s{c}", "x", c, c + 1), (6, 6))
        b.reshape(f"u{c}", f"g{c}", (1, 6, 6))
        b.binary(f"m{c}", BinaryOp.MUL, f"u{c}", 0.4 + c)
        scaled.append(b.binary(f"a{c}", BinaryOp.ADD, f"m{c}", 0.1 - c))
    b.concat("y", *scaled)
    _, s, t = only_scale_shift(rewritten(b.build("y"), rounds=True))
    np.testing.assert_allclose(s, [0.4, 1.4, 2.4], rtol=1e-7)
    np.testing.assert_allclose(t, [0.1, -0.9, -1.9], rtol=1e-7)


def test_slices_in_another_order_stay_apart() -> None:
    b = GraphBuilder(x=(16, 6, 6))
    low, high = b.slice("low", "x", 0, 8), b.slice("high", "x", 8, 16)
    b.conv("y", b.concat("k", high, low))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]


def test_slices_of_two_values_stay_apart() -> None:
    b = GraphBuilder(x=(16, 6, 6), z=(16, 6, 6))
    b.conv("y", b.concat("k", b.slice("low", "x", 0, 8), b.slice("high", "z", 8, 16)))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]


def test_slices_that_leave_channels_out_stay_apart() -> None:
    b = GraphBuilder(x=(24, 6, 6))
    b.conv("y", b.concat("k", b.slice("low", "x", 0, 8), b.slice("high", "x", 8, 16)))
    assert kinds(rewritten(b.build("y"))) == ["Slice", "Slice", "Conv"]
