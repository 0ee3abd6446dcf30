"""Flattening moves nothing in an NHWC buffer; the columns of the following Gemm move instead."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import Reshape, Value
from models.rewrite import rewrite
from tests.support.models.graphs import GraphBuilder, kinds, refusals, rewritten

CLIP = Activation(ActivationKind.CLIP, -1.0, 1.0)


def test_the_columns_of_the_gemm_stand_in_the_order_of_the_buffer() -> None:
    b = GraphBuilder(x=(2, 1, 3))
    b.gemm("y", b.reshape("v", "x", (6,)), k=1)
    b.weights["y.w"] = np.array([[0, 1, 2, 10, 11, 12]], np.float32)  # channel 0, then channel 1
    result = rewritten(b.build("y"))
    np.testing.assert_array_equal(result.graph.weights["y.weight"], [[0, 10, 1, 11, 2, 12]])


@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 2, 3, 2), (4, 6)])
def test_a_flattened_image_is_read_channels_last(shape: tuple[int, ...]) -> None:
    b = GraphBuilder(x=shape)
    b.gemm("y", b.reshape("v", "x", (int(np.prod(shape)),)))
    reshape, _ = rewritten(b.build("y")).graph.nodes
    assert isinstance(reshape, Reshape)
    assert reshape.channels_last


def test_several_gemms_may_read_the_vector_and_its_activations() -> None:
    b = GraphBuilder(x=(4, 3, 3))
    b.reshape("v", "x", (36,))
    b.gemm("y", "v")
    b.gemm("z", b.activate("r", "v", CLIP))
    result = rewritten(b.build("y", "z"))
    assert kinds(result) == ["Reshape", "Gemm", "Activate", "Gemm"]
    assert result.refused == ()


def test_gemms_that_share_a_filter_are_permuted_each_for_itself() -> None:
    b = GraphBuilder(x=(4, 3, 3), flat=(36,))
    b.gemm("y", b.reshape("v", "x", (36,)))
    b.gemm("z", "flat")
    b.nodes[-1] = b.nodes[-1].renamed({"z.w": "y.w"})
    rewritten(b.build("y", "z"))


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 3, 3), (8,)])
def test_where_both_orders_are_one_no_gemm_is_needed(shape: tuple[int, ...]) -> None:
    b = GraphBuilder(x=shape)
    b.add(Reshape, "y", (1, int(np.prod(shape))), x="x")
    result = rewritten(b.build("y"))
    (node,) = result.graph.nodes
    assert isinstance(node, Reshape)
    assert node.channels_last
    assert result.refused == ()


def test_pooling_flattening_and_classifying_moves_nothing() -> None:
    b = GraphBuilder(x=(8, 4, 4))
    b.reshape("s", b.pool("p", "x", PoolKind.AVERAGE, 4), (8, 1))
    b.gemm("y", b.reshape("v", "s", (8,)))
    result = rewritten(b.build("y"))
    assert kinds(result) == ["GlobalPool", "Reshape", "Gemm"]
    assert result.graph.weights.keys() == {"y.w", "y.b"}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("output", "v is an output of the network, in C×H×W order"),
        ("scale", "scaleshift_n reads v in C×H×W order"),
        ("sum behind an activation", "binary_s reads r in C×H×W order"),
        ("part of a concat", "r is stored in k, in C×H×W order"),
    ],
)
def test_a_vector_that_others_need_in_its_order_stays(case: str, reason: str) -> None:
    b = GraphBuilder(x=(4, 2, 2), z=(16,))
    outputs = ["y"]
    b.gemm("y", b.reshape("v", "x", (16,)))
    match case:
        case "output":
            outputs.append("v")
        case "scale":
            outputs.append(b.scale_shift("n", "v"))
        case "sum behind an activation":
            b.activate("r", "v", RELU)
            outputs.append(b.binary("s", BinaryOp.ADD, "r", "z"))
        case "part of a concat":
            outputs.append(b.concat("k", b.gemm("g", "z", k=8), b.activate("r", "v", RELU)))
    result = rewritten(b.build(*outputs))
    assert refusals(result, "flatten_channels_last") == {"reshape_v": reason}


def test_a_reshape_to_an_image_is_left_alone() -> None:
    b = GraphBuilder(x=(4, 3, 2))
    b.reshape("y", "x", (2, 3, 4))
    (node,) = rewritten(b.build("y")).graph.nodes
    assert isinstance(node, Reshape)
    assert not node.channels_last


def test_what_was_read_channels_last_is_not_taken_back_by_another_reshape() -> None:
    b = GraphBuilder(x=(4, 3, 2))
    b.add(Reshape, "v", (24,), x="x", channels_last=True)
    b.reshape("y", "v", (2, 3, 4))
    assert kinds(rewritten(b.build("y"))) == ["Reshape", "Reshape"]


def test_a_value_with_gaps_between_its_pixels_is_not_flattened_in_place() -> None:
    b = GraphBuilder(x=(8, 2, 2))
    b.conv("y", b.concat("k", b.conv("c", "x"), b.conv("d", "x")))
    b.gemm("z", b.reshape("v", "c", (32,)))
    placed = rewrite(b.build("y")).graph  # only now does z read c
    reread = replace(
        placed,
        outputs=("y", "z"),
        values={**placed.values, "v": Value("v", (32,)), "z": Value("z", (5,))},
        nodes=(*placed.nodes, *b.nodes[-2:]),
        weights=b.weights,
    )
    result = rewritten(reread)
    assert refusals(result, "flatten_channels_last") == {
        "reshape_v": "c is stored in k, with gaps between pixels"
    }
