"""A ScaleShift is folded into the Conv or Gemm before it."""

import numpy as np
import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Conv, Gemm
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (4, 6, 6)


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
        ("activation", ("y",), "conv_c has the activation Relu"),
        ("residual", ("y",), "conv_c adds x before the scaling"),
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
    b = GraphBuilder(x=(1, 6))
    b.scale_shift("y", b.gemm("g", "x"))
    result = rewritten(b.build("y"))
    assert refusals(result, "fold_scale_shift") == {
        "scaleshift_y": "gemm_g has outputs along the last axis, but the scale is along the first"
    }
