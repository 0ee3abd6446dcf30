"""The loader on models that few exporters write, and on some that only onnx.checker accepts."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from models.errors import NoKernelsError, UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise
from tests.support.onnx_models import run_onnxruntime


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
    with pytest.raises(UnsupportedModelError, match="has one axis with"):
        load_proto("m", original)


def test_weights_whose_bytes_do_not_fit_their_shape_are_refused() -> None:
    original = model([node("Conv", "x w")], {"w": noise(2, 4, 3, 3).astype(np.float16)})
    original.graph.initializer[0].dims[0] = 3
    with pytest.raises(UnsupportedModelError, match="contradicts itself: cannot reshape"):
        load_proto("m", original)


def test_an_unnamed_node_may_write_what_another_is_named() -> None:
    """ONNX Runtime refuses two nodes with the same name."""
    first, second = node("Relu", "x", "h"), node("Neg", "h", "y")
    first.name, second.name = "y", ""
    original = model([first, second])
    loaded = load_proto("m", original)
    assert [each.name for each in loaded.proto.graph.node] == ["y", "y_"]
    assert_same_at_every_n(original, loaded)


def resize(scales: str, sizes: str) -> onnx.NodeProto:
    return helper.make_node("Resize", ["x", "", scales, sizes], ["y"], mode="nearest")


@pytest.mark.parametrize(
    ("nodes", "weights", "says"),
    [
        ([node("Gelu", "x", approximate="best")], {}, "approximate=best is unknown"),
        ([node("Gather", "x i", axis=1)], {"i": np.zeros(0, np.int64)}, "at least one is required"),
        ([node("Gather", "x i", axis=1)], {"i": np.array([4])}, r"indices \[4\]: axis 1"),
        ([node("Gather", "x i", axis=1)], {"i": np.array([-5])}, r"indices \[-5\]: axis 1"),
        ([node("Conv", "x w b")], {"w": noise(2, 4, 1, 1), "b": noise(3)}, r"bias \(3,\) does not"),
        ([node("Conv", "x w", pads=[1, 1])], {"w": noise(2, 4, 1, 1)}, "Conv: "),
    ],
)
def test_nodes_that_only_the_checker_accepts_are_refused(
    nodes: list[onnx.NodeProto], weights: Weights, says: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        load_proto("m", model(nodes, weights, opset=20, infer=False))


W = noise(6, 4, 3, 3)


@pytest.mark.parametrize(
    ("nodes", "weights", "says"),
    [
        ([node("Conv", "x w", group=0)], {"w": W}, "does not fit 4 channels, group=0"),
        ([node("Conv", "x w", group=-2)], {"w": W}, "does not fit 4 channels, group=-2"),
        (
            [node("Conv", "x w", group=2)],
            {"w": W},
            r"filter \(6, 4, 3, 3\) does not fit 4 channels",
        ),
        ([node("Conv", "x w", group=4)], {"w": W[:, :1]}, "does not fit 4 channels, group=4"),
        ([node("Conv", "x w")], {"w": W[:, :3]}, "does not fit 4 channels, group=1"),
        (
            [node("Conv", "x w")],
            {"w": W[..., 0]},
            r"filter \(6, 4, 3\) must have as many axes as the input \(1, 4, 6, 6\)",
        ),
        ([node("Conv", "x w", kernel_shape=[5, 5])], {"w": W}, r"kernel_shape=\(5, 5\), but"),
        ([node("Conv", "x w b")], {"w": W, "b": noise(5)}, r"bias \(5,\) does not fit 6"),
        ([resize("", "s")], {"s": np.array([1, 4, 0, 6])}, r"each of sizes=\[1, 4, 0, 6\] must"),
        ([resize("", "s")], {"s": np.array([1, 4, -2, 6])}, "each of .*must be above 0"),
        (
            [resize("s", "")],
            {"s": np.array([1, 1, 0, 1], np.float32)},
            "each of scales=.*must be above 0",
        ),
        (
            [resize("s", "")],
            {"s": np.array([1, 1, 0.01, 1], np.float32)},
            "has no elements",
        ),
        ([node("Pad", "x p")], {"p": np.array([0, 0, -3, 0, 0, 0, -3, 0])}, "has no elements"),
        ([node("Gather", "x i", axis=1)], {"i": np.array([4])}, "axis 1 has only 4 entries"),
        ([node("Gather", "x i", axis=4)], {"i": np.array([0])}, "axis=4 does not exist"),
        (
            [node("SpaceToDepth", "x", blocksize=4)],
            {},
            r"blocksize=4 must divide the height and the width of the input \(1, 4, 6, 6\)",
        ),
        (
            [node("DepthToSpace", "x", blocksize=0)],
            {},
            "the square of blocksize=0 must divide the channels",
        ),
        (
            [node("DepthToSpace", "x", blocksize=4)],
            {},
            "the square of blocksize=4 must divide the channels",
        ),
        ([node("LRN", "x", size=4)], {}, "size=4 must be odd"),
        ([node("PRelu", "x s")], {"s": noise(5)}, r"slopes \(5,\) must broadcast"),
        (
            [node("InstanceNormalization", "x s s")],
            {"s": noise(3)},
            r"scale \(3,\) does not fit 4 channels",
        ),
        (
            [node("LayerNormalization", "x s s")],
            {"s": noise(5)},
            r"scale \(5,\) does not fit images of shape \(4, 6, 6\)",
        ),
        *(
            (
                [node("GroupNormalization", "x s s", num_groups=groups)],
                {"s": noise(4)},
                f"num_groups={groups} does not divide 4 channels",
            )
            for groups in (0, 3)
        ),
        (
            [node("Pad", "x p", mode="reflect")],
            {"p": np.array([0, 0, 9, 0, 0, 0, 9, 0])},
            "mode=reflect cannot pad 6 pixels by 9 and 9",
        ),
        (
            [node("AveragePool", "x", kernel_shape=[2, 2], pads=[2, 0, 0, 0])],
            {},
            r"each of pads=\(2, 0, 0, 0\) must be below kernel_shape=\(2, 2\)",
        ),
        (
            [node("Gather", "k i", "c", axis=0), node("Add", "x c")],
            {"k": noise(4, 6), "i": np.array([7])},
            r"indices \[7\]: axis 0",
        ),
        *(
            (
                [node(op, "a b", "c"), node("Cast", "c", "d", to=1), node("Mul", "x d")],
                {"a": np.array([7, 8]), "b": np.array([2, 0])},
                f"{op} {op}_c divides integers by 0",
            )
            for op in ("Div", "Mod")
        ),
        (
            [node("Cast", "x", "c", to=7), node("Div", "c b", "d"), node("Cast", "d", to=1)],
            {"b": np.array(0)},
            "Div Div_d divides integers by 0",
        ),
    ],
)
def test_what_no_runtime_computes_is_refused_and_not_left_to_onnxruntime(
    nodes: list[onnx.NodeProto], weights: Weights, says: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        load_proto("m", model(nodes, weights, opset=21, infer=False), opaque=True)
    assert not isinstance(caught.value, NoKernelsError)


def test_numbers_may_be_divided_by_0() -> None:
    original = model([node("Div", "x z")], {"z": np.array([0], np.float32)})
    x = noise(1, 4, 6, 6)
    loaded = load_proto("m", original)
    (normal,) = run_onnxruntime(loaded.proto, {"x": x}).values()
    assert (normal == run_onnxruntime(original, {"x": x})["y"]).all()
    assert np.isinf(normal).all()


@pytest.mark.parametrize("ahead", ["Conv", "Gemm"])
@pytest.mark.parametrize("training", [0, 1])
def test_a_normalisation_in_training_is_not_folded_into_what_is_ahead_but_refused(
    ahead: str, training: int
) -> None:
    first = {
        "Conv": [node("Conv", "x w", "z")],
        "Gemm": [node("Flatten", "x", "f"), node("Gemm", "f w", "z", transB=1)],
    }
    outputs = ["n", "mean", "variance"] if training else ["n"]
    inputs = ["z", "scale", "shift", "m", "v"]
    attributes: dict[str, Any] = {"training_mode": 1} if training else {}
    original = model(
        [
            *first[ahead],
            helper.make_node("BatchNormalization", inputs, outputs, "bn", **attributes),
            node("Flatten", "n"),
        ],
        {
            "w": noise(5, 4, 3, 3) if ahead == "Conv" else noise(5, 144),
            "scale": noise(5),
            "shift": noise(5),
            "m": noise(5),
            "v": noise(5) ** 2 + 0.5,
        },
        shape=("N", 4, 6, 6),
    )
    if training:
        with pytest.raises(UnsupportedModelError, match=r"BatchNormalization bn .*model\.eval\(\)"):
            load_proto("m", original, opaque=True)
        return
    loaded = load_proto("m", original, opaque=True)
    assert "BatchNormalization" not in [each.op_type for each in loaded.proto.graph.node]
    x = noise(1, 4, 6, 6)
    (scores,) = run_onnxruntime(loaded.proto, {"x": x}).values()
    np.testing.assert_allclose(scores, run_onnxruntime(original, {"x": x})["y"], atol=1e-4)


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


@pytest.mark.parametrize("batch", [-1, -7])
def test_a_batch_below_0_is_open_as_onnxruntime_has_it(batch: int) -> None:
    original = model([node("Conv", "x w")], {"w": noise(2, 4, 3, 3)}, shape=("N", 4, 6, 6))
    for value in (*original.graph.input, *original.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    assert_same_at_every_n(original, load_proto("m", original))


def test_sizes_below_0_are_open_and_asked_for() -> None:
    original = model([node("Relu", "x")], shape=(-1, 4, -1, -1), infer=False)
    with pytest.raises(UnsupportedModelError, match="has unknown sizes"):
        load_proto("m", original)
    assert_same_at_every_n(original, load_proto("m", original, (4, 6, 6)))


def test_a_zip_map_is_refused_in_words_of_our_own() -> None:
    labels = helper.make_node(
        "ZipMap", ["x"], ["y"], "zip", "ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    original = model([labels], shape=("N", 2), infer=False)
    original.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    mapped = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    original.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(mapped))
    with pytest.raises(
        UnsupportedModelError, match=r"y of ZipMap zip is a map .*'zipmap'"
    ) as caught:
        load_proto("m", original, opaque=True)
    assert "contribut" not in str(caught.value)


def test_a_sparse_constant_is_refused_in_words_of_our_own() -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "values")
    places = numpy_helper.from_array(np.zeros((1, 4), np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [1, 4, 6, 6])
    constant = helper.make_node("Constant", [], ["c"], "few", sparse_value=sparse)
    original = model([constant, node("Add", "x c")], infer=False)
    with pytest.raises(UnsupportedModelError, match="Constant few holds a sparse tensor"):
        load_proto("m", original, opaque=True)


def test_an_operator_that_cannot_be_converted_is_named() -> None:
    original = model(
        [node("Relu", "x", "r"), helper.make_node("GivenTensorFill", ["r"], ["y"], "filler")],
        opset=7,
        infer=False,
    )
    with pytest.raises(UnsupportedModelError, match=r"cannot convert GivenTensorFill \(filler\)"):
        load_proto("m", original)


@pytest.mark.parametrize("name", ["", "ai.onnx"])
def test_the_standard_operators_have_two_names(name: str) -> None:
    original = model([node("Softmax", "x", axis=1)], opset=11)
    original.opset_import[0].domain = name
    original.graph.node[0].domain = name
    assert_same_at_every_n(original, load_proto("m", original))


def test_a_call_without_an_attribute_gets_the_default_of_its_function() -> None:
    leaky = helper.make_function(
        "own", "Act", ["a"], ["b"], [node("LeakyRelu", "a", "b")], [helper.make_opsetid("", 17)]
    )
    leaky.node[0].attribute.add(name="alpha", ref_attr_name="k", type=onnx.AttributeProto.FLOAT)
    leaky.attribute_proto.append(helper.make_attribute("k", 0.7))
    calls = [node("Act", "x", "h", domain="own"), node("Act", "h", "y", domain="own", k=0.4)]
    original = model(calls, infer=False)
    original.opset_import[0].version = 17
    original.opset_import.append(helper.make_opsetid("own", 1))
    original.functions.append(leaky)
    original.graph.output[0].type.CopyFrom(original.graph.input[0].type)
    assert_same_at_every_n(original, load_proto("m", original))
    leaky.attribute_proto[0].CopyFrom(helper.make_attribute("k", [0.7] * 1000))
    original.functions[0].CopyFrom(leaky)
    with pytest.raises(UnsupportedModelError, match="a default of the function Act has more than"):
        load_proto("m", original)
