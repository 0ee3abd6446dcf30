"""The loader on models that few exporters write, and on some that only onnx.checker accepts."""

import numpy as np
import onnx
import pytest
from onnx import helper

from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise


def test_a_tiny_file_cannot_have_a_huge_axis_written_out() -> None:
    original = model(
        [
            node("ConstantOfShape", "size", "c"),
            node("Unsqueeze", "c axes", "d"),
            node("Add", "x d"),
        ],
        {"size": np.array([2**62]), "axes": np.array([0, 1, 2])},
        infer=False,
    )
    with pytest.raises(UnsupportedModelError, match="entries in its one axis"):
        load_proto("m", original)


def test_weights_whose_bytes_do_not_fit_their_shape_are_refused() -> None:
    original = model([node("Conv", "x w")], {"w": noise(2, 4, 3, 3).astype(np.float16)})
    original.graph.initializer[0].dims[0] = 3
    with pytest.raises(UnsupportedModelError, match="contradicts itself: cannot reshape"):
        load_proto("m", original)


@pytest.mark.parametrize(
    ("nodes", "weights", "says"),
    [
        ([node("Gelu", "x", approximate="best")], {}, "approximate=best is unknown"),
        ([node("Gather", "x i", axis=1)], {"i": np.zeros(0, np.int64)}, "give at least one"),
        ([node("Gather", "x i", axis=1)], {"i": np.array([4])}, r"indices \[4\] of 4"),
        ([node("Gather", "x i", axis=1)], {"i": np.array([-5])}, r"indices \[-5\] of 4"),
        ([node("Conv", "x w b")], {"w": noise(2, 4, 1, 1), "b": noise(3)}, r"bias \(3,\) does not"),
        ([node("Conv", "x w", pads=[1, 1])], {"w": noise(2, 4, 1, 1)}, "Conv: "),
    ],
)
def test_nodes_that_only_the_checker_accepts_are_refused(
    nodes: list[onnx.NodeProto], weights: Weights, says: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        load_proto("m", model(nodes, weights, opset=20, infer=False))


def test_a_bias_of_the_exported_batch_holds_at_every_batch_size() -> None:
    exported = model(
        [node("Flatten", "x", "f"), node("Gemm", "f w b")],
        {"w": noise(144, 10), "b": np.full((8, 1), 3, np.float32)},
        shape=(8, 4, 6, 6),
    )
    single = model(
        [node("Flatten", "x", "f"), node("Gemm", "f w b")],
        {"w": np.zeros(0), "b": np.full((1, 1), 3, np.float32)},
    )
    single.graph.initializer[0].CopyFrom(exported.graph.initializer[0])
    assert_same_at_every_n(single, load_proto("m", exported))


def test_a_reshape_that_allows_zero_holds_at_every_batch_size() -> None:
    exported = model(
        [node("Reshape", "x target", allowzero=1)], {"target": np.array([8, 2, 72])}, (8, 4, 6, 6)
    )
    single = model([node("Reshape", "x target")], {"target": np.array([1, 2, 72])})
    assert_same_at_every_n(single, load_proto("m", exported))


def test_a_constant_read_in_two_shapes_stays_two_weights() -> None:
    original = model(
        [
            node("Reshape", "x rows", "r"),
            node("Concat", "r k", "c", axis=1),
            node("Add", "x k", "d"),
            node("Flatten", "c", "e"),
            node("Flatten", "d", "f"),
            node("Concat", "e f", axis=1),
        ],
        {"rows": np.array([1, 24, 6]), "k": noise(1, 6, 6)},
    )
    assert_same_at_every_n(original, load_proto("m", original))


@pytest.mark.parametrize("clash", ["first/weight", "c/cut0"])
def test_names_that_the_loader_makes_up_give_way_to_the_models(clash: str) -> None:
    original = model(
        [
            node("Slice", "x starts ends axes", "c"),
            node("Relu", "c", clash),
            node("Flatten", clash, "f"),
            helper.make_node("Gemm", ["f", "w"], ["h"], name="first"),
            node("Add", f"h {'k' if clash == 'first/weight' else 'first/weight'}"),
        ],
        {
            "starts": np.array([1, 1]),
            "ends": np.array([5, 4]),
            "axes": np.array([2, 3]),
            "w": noise(48, 10),
            "k" if clash == "first/weight" else "first/weight": noise(10),
        },
    )
    assert_same_at_every_n(original, load_proto("m", original))
