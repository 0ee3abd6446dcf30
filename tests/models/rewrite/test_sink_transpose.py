"""Transposes move behind the nodes that read them, and cancel when one undoes another."""

import pytest

from kernels.problems.activation import RELU
from kernels.problems.binary_operation import BinaryOp
from models.graph import Constant, Conv, Normalise, Slice, Softmax
from tests.support.models.graphs import GraphBuilder, kinds, rewritten


def test_a_gemm_along_the_channels_is_a_convolution() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.transpose("y", b.gemm("g", b.transpose("t", "x", 1, 2, 0), 7), 2, 0, 1)
    assert kinds(rewritten(b.build("y"))) == ["Conv"]


def test_a_gemm_along_another_axis_is_a_convolution_between_transposes() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    b.gemm("y", b.transpose("t", "x", 0, 2, 1), 7)
    assert kinds(rewritten(b.build("y"))) == ["Transpose", "Conv", "Transpose"]


@pytest.mark.parametrize("rows", [(5,), (2, 3), (2, 3, 4)])
def test_the_rows_of_a_layer_are_pixels(rows: tuple[int, ...]) -> None:
    b = GraphBuilder(x=(*rows, 4))
    b.gemm("y", "x", 6)
    assert "Gemm" not in kinds(rewritten(b.build("y")))


def test_one_row_stays() -> None:
    b = GraphBuilder(x=(1, 1, 4))
    b.gemm("y", "x", 6)
    assert kinds(rewritten(b.build("y"))) == ["Gemm"]


def test_tokens_of_pixels_are_pixels_up_to_the_class_token() -> None:
    """In a ViT's layer, the addition becomes a residual, and only views remain."""
    b = GraphBuilder(x=(3, 4, 4))
    flat = b.reshape("f", b.conv("p", "x", 8, 1), (8, 16))
    tokens = b.transpose("t", flat, 1, 0)
    first = b.add(Constant, "first", (1, 8), weight=b.noise("class", (1, 8)))
    every = b.concat("c", first, tokens, axis=0)
    every = b.binary("s", BinaryOp.ADD, every, b.noise("position", (17, 8)))
    scale, shift = b.noise("scale", (8,)), b.noise("shift", (8,))
    fields = {"scale": scale, "shift": shift, "axes": (1,), "epsilon": 0.1}
    inner = b.add(Normalise, "n", (17, 8), x=every, **fields)
    inner = b.activate("r", b.gemm("g", inner, 12), RELU)
    inner = b.binary("d", BinaryOp.ADD, b.gemm("h", inner, 8, bias=False), b.noise("bias", (8,)))
    last = b.binary("e", BinaryOp.ADD, every, inner)
    read = b.add(Slice, "l", (1, 8), x=last, axis=0, start=0, stop=1)
    b.gemm("y", b.reshape("v", read, (8,)), 5)
    result = rewritten(b.build("y"), rounds=True)
    computing = [kind for kind in kinds(result) if kind not in ("Reshape", "Slice")]
    wanted = ["Constant", "Conv", "Concat", "Binary", "Normalise", "Conv", "Conv", "Gemm"]
    assert sorted(computing) == sorted(wanted)
    assert [node.residual is not None for node in result.graph.nodes if isinstance(node, Conv)] == [
        False,
        False,
        True,
    ]


def test_what_is_added_to_pixels_is_transposed_as_well() -> None:
    b = GraphBuilder(x=(6, 4, 5), r=(4, 5, 7))
    b.binary("y", BinaryOp.ADD, "r", b.gemm("g", b.transpose("t", "x", 1, 2, 0), 7))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["Transpose", "Conv", "Transpose"]


def test_two_layers_of_one_value_share_its_transpose() -> None:
    b = GraphBuilder(x=(4, 5, 8))
    b.concat("y", b.gemm("g", "x", 8), b.gemm("h", "x", 16), axis=2)
    assert kinds(rewritten(b.build("y"))).count("Transpose") == 2


def test_rows_in_another_shape_are_the_same_pixels() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    rows = b.reshape("r", b.transpose("t", "x", 1, 2, 0), (20, 6))
    back = b.reshape("q", b.transpose("u", b.activate("a", rows, RELU), 1, 0), (6, 2, 10))
    b.activate("y", back, RELU)
    assert "Transpose" not in kinds(rewritten(b.build("y")))


def test_every_reader_of_a_transposed_value_takes_it_over() -> None:
    b = GraphBuilder(x=(6, 4, 5))
    last = b.transpose("t", "x", 1, 2, 0)
    left = b.activate("a", last, RELU)
    right = b.add(Softmax, "s", (4, 5, 6), x=last, axis=2)
    joined = b.concat("k", left, right, axis=2)
    b.transpose("y", b.binary("m", BinaryOp.MUL, joined, b.noise("w", (12,))), 2, 0, 1)
    assert "Transpose" not in kinds(rewritten(b.build("y"), rounds=True))


def test_values_transposed_in_different_ways_stay() -> None:
    b = GraphBuilder(x=(4, 4, 4))
    b.binary("y", BinaryOp.ADD, b.transpose("t", "x", 1, 2, 0), b.transpose("u", "x", 2, 0, 1))
    assert kinds(rewritten(b.build("y"))) == ["Transpose", "Transpose", "Binary"]


def test_a_transpose_of_axes_of_one_is_a_reshape() -> None:
    b = GraphBuilder(x=(6, 1, 1))
    b.transpose("y", "x", 1, 2, 0)
    assert kinds(rewritten(b.build("y"))) == ["Reshape"]
