"""A ScaleShift is folded into the Conv or Gemm after it."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

SHAPE = (4, 6, 6)


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
    b = GraphBuilder(x=(1, 6) if case == "gemm" else SHAPE)
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
        ("activation", ("y",), "conv_y", "scaleshift_n has the activation Relu"),
        ("read", ("y", "p"), "conv_y", "n is also read by transpose_p"),
        (
            "gemm",
            ("y",),
            "gemm_y",
            "gemm_y has inputs along the last axis, but the scale is along the first",
        ),
    ],
)
def test_one_before_a_conv_or_gemm_stays(
    case: str, outputs: tuple[str, ...], node: str, reason: str
) -> None:
    result = rewritten(refused_ahead(case).build(*outputs))
    assert kinds(result)[0] == "ScaleShift"
    assert refusals(result, "fold_scale_shift_ahead") == {node: reason}
