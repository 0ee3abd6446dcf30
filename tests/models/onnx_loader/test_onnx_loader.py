"""The loader on small models: its results, its refusals and their messages."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels.problems.activation import ActivationKind
from models import graph as g
from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise
from tests.support.onnx_models import run_onnxruntime

BATCH_1_MODELS = {
    "a Reshape target that says 1": model(
        [node("Reshape", "x shape")], {"shape": np.array([1, 144])}
    ),
    "a Reshape target that says -1 for the batch": model(
        [node("Reshape", "x shape")], {"shape": np.array([-1, 144])}
    ),
    "a Reshape target that says -1 elsewhere": model(
        [node("Reshape", "x shape")], {"shape": np.array([1, -1, 6])}
    ),
    "a Reshape target with a 0": model(
        [node("Reshape", "x shape")], {"shape": np.array([0, 0, -1])}
    ),
    "a Reshape target computed with Shape, Gather and Concat": model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n zero_axis", "n1"),
            node("Concat", "n1 minus_one", "target", axis=0),
            node("Reshape", "x target"),
        ],
        {
            "zero": np.array(0),
            "zero_axis": np.array([0]),
            "minus_one": np.array([-1]),
        },
    ),
    "an Expand to batch 1": model([node("Expand", "x shape")], {"shape": np.array([1, 4, 6, 6])}),
    "a constant of shape with the batch in it, added": model(
        [
            node(
                "ConstantOfShape",
                "shape",
                "c",
                value=numpy_helper.from_array(np.array([2.5], np.float32)),
            ),
            node("Add", "x c"),
        ],
        {"shape": np.array([1, 4, 1, 1])},
    ),
    "a constant of batch 1, concatenated": model(
        [node("Concat", "x c x", axis=1)], {"c": noise(1, 2, 6, 6)}
    ),
    "a channel shuffle with fixed targets": model(
        [
            node("Reshape", "x split", "a"),
            node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
            node("Reshape", "b join"),
        ],
        {"split": np.array([1, 2, 2, 6, 6]), "join": np.array([1, 4, 6, 6])},
    ),
    "a Squeeze and an Unsqueeze": model(
        [
            node("GlobalAveragePool", "x", "p"),
            node("Squeeze", "p axes", "s"),
            node("Unsqueeze", "s axes"),
        ],
        {"axes": np.array([2, 3])},
    ),
}


@pytest.mark.parametrize("name", BATCH_1_MODELS)
def test_a_model_exported_with_batch_1_runs_at_any_n(name: str) -> None:
    original = BATCH_1_MODELS[name]
    assert_same_at_every_n(original, load_proto(name, original))


def test_a_model_exported_with_a_larger_batch_runs_at_any_n() -> None:
    rows = np.repeat(noise(1, 4, 1, 1), 3, axis=0)
    original = model(
        [node("Add", "x c", "a"), node("Reshape", "a shape")],
        {"c": rows, "shape": np.array([3, -1])},
        shape=(3, 4, 6, 6),
    )
    images = noise(3, 4, 6, 6)
    expected = run_onnxruntime(original, {"x": images})["y"]
    loaded = load_proto("m", original)
    for n in (1, 2, 3):
        actual = run_onnxruntime(loaded.proto, {"x": images[:n]})["y"]
        np.testing.assert_allclose(actual, expected[:n], rtol=1e-6)


def test_an_expand_to_a_larger_batch_runs_at_any_n() -> None:
    original = model(
        [node("Relu", "x", "r"), node("Expand", "r shape")],
        {"shape": np.array([3, 4, 1, 6])},
        shape=(3, 4, 6, 6),
    )
    images = noise(3, 4, 6, 6)
    loaded = load_proto("m", original)
    for n in (1, 2, 3):
        (actual,) = run_onnxruntime(loaded.proto, {"x": images[:n]}).values()
        np.testing.assert_array_equal(actual, np.maximum(images[:n], 0))


MOVES_THE_BATCH: dict[str, tuple[list[onnx.NodeProto], Weights, str]] = {
    "a Reshape that folds it into the channels": (
        [node("Reshape", "x shape")],
        {"shape": np.array([2, -1])},
        "axis 0, the batch, must not change",
    ),
    "a Transpose": (
        [node("Transpose", "x", perm=[1, 0, 2, 3])],
        {},
        "moves axis 0",
    ),
    "a Concat of images": ([node("Concat", "x x", axis=0)], {}, "along axis 0, the batch"),
    "a Softmax over images": ([node("Softmax", "x", axis=0)], {}, "along axis 0, the batch"),
    "a Pad after it": (
        [node("Pad", "x pads")],
        {"pads": np.array([0, 0, 0, 0, 1, 0, 0, 0])},
        "change axis 0, the batch",
    ),
    "a Squeeze of it": ([node("Squeeze", "x axes")], {"axes": np.array([0])}, "must not change"),
}


@pytest.mark.parametrize("name", MOVES_THE_BATCH)
def test_what_would_mix_images_is_refused(name: str) -> None:
    nodes, weights, message = MOVES_THE_BATCH[name]
    with pytest.raises(UnsupportedModelError, match=message):
        load_proto("m", model(nodes, weights))


def test_a_constant_that_differs_from_image_to_image_is_refused() -> None:
    original = model([node("Add", "x c")], {"c": noise(3, 4, 1, 1)}, shape=(3, 4, 6, 6))
    with pytest.raises(UnsupportedModelError, match="c differs between the 3 images"):
        load_proto("m", original)


def test_a_float16_model_is_read_as_float32_exactly() -> None:
    half = noise(8, 4, 3, 3).astype(np.float16)
    original = model(
        [
            node("Conv", "x w", "c"),
            node("Cast", "c", "d", to=TensorProto.FLOAT16),
            node("Relu", "d"),
        ],
        {"w": half},
        element=TensorProto.FLOAT16,
    )
    loaded = load_proto("half", original)
    assert next(iter(loaded.graph.weights.values())).dtype == np.float32
    assert (next(iter(loaded.graph.weights.values())) == half.astype(np.float32)).all()
    assert loaded.proto.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    images = noise(2, 4, 6, 6)
    single = model([node("Conv", "x w", "c"), node("Relu", "c")], {"w": half.astype(np.float32)})
    expected = run_onnxruntime(single, {"x": images[:1]})["y"]
    (actual,) = run_onnxruntime(loaded.proto, {"x": images}).values()
    np.testing.assert_allclose(actual[:1], expected, rtol=1e-6, atol=1e-6)


def test_float16_constants_inside_nodes_are_read_as_float32() -> None:
    constant = numpy_helper.from_array(np.array([0.5], np.float16))
    nodes = [node("Constant", "", "c", value=constant), node("Mul", "x c")]
    loaded = load_proto("half", model(nodes, element=TensorProto.FLOAT16))
    (weight,) = loaded.graph.weights.values()
    assert weight.tolist() == [0.5]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_auto_pad_becomes_explicit(op: str, auto_pad: str) -> None:
    attributes: dict[str, Any] = {"auto_pad": auto_pad, "strides": [2, 2]}
    weights: Weights = {}
    inputs = "x"
    if op == "Conv":
        weights, inputs = {"w": noise(8, 4, 3, 3)}, "x w"
    else:
        attributes["kernel_shape"] = [3, 3]
    original = model([node(op, inputs, **attributes)], weights)
    assert_same_at_every_n(original, load_proto("m", original))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_auto_pad_with_dilations_is_refused_for_it_means_two_things(op: str) -> None:
    attributes: dict[str, Any] = {"auto_pad": "SAME_UPPER", "dilations": [1, 2]}
    original = model([node(op, "x", kernel_shape=[3, 3], **attributes)], opset=19)
    with pytest.raises(UnsupportedModelError, match="with dilations="):
        load_proto("m", original)


@pytest.mark.parametrize("size", [0, 2])
def test_an_lrn_whose_size_is_not_odd_is_refused(size: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"size={size} must be odd and positive"):
        load_proto("m", model([node("LRN", "x", size=size)]))


@pytest.mark.parametrize("include_pad", [0, 1])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [6, 7, 8])
def test_ceil_mode_agrees_with_onnxruntime(op: str, include_pad: int, size: int) -> None:
    attributes: dict[str, Any] = {
        "kernel_shape": [3, 2],
        "strides": [2, 3],
        "pads": [1, 0, 1, 1],
        "ceil_mode": 1,
    }
    if op == "AveragePool":
        attributes["count_include_pad"] = include_pad
    original = model([node(op, "x", **attributes)], shape=(1, 4, size, size), opset=19)
    assert_same_at_every_n(original, load_proto("m", original), (4, size, size))


def test_batch_normalisation_that_follows_no_conv_is_a_scale_and_a_shift() -> None:
    parts: Weights = {"s": noise(4), "b": noise(4), "m": noise(4), "v": np.abs(noise(4)) + 0.5}
    original = model([node("BatchNormalization", "x s b m v", epsilon=1e-3)], parts)
    loaded = load_proto("m", original)
    assert [type(n) for n in loaded.graph.nodes] == [g.ScaleShift]
    assert_same_at_every_n(original, loaded)


def test_clip_from_zero_up_is_relu() -> None:
    loaded = load_proto("m", model([node("Clip", "x zero")], {"zero": np.array(0, np.float32)}))
    (only,) = loaded.graph.nodes
    assert isinstance(only, g.Activate)
    assert only.activation.kind is ActivationKind.RELU


def test_gemm_takes_alpha_beta_and_both_orders_of_its_weight() -> None:
    for trans_b, shape in ((0, (144, 10)), (1, (10, 144))):
        original = model(
            [
                node("Flatten", "x", "f"),
                node("Gemm", "f w b", alpha=0.5, beta=2.0, transB=trans_b),
            ],
            {"w": noise(*shape), "b": noise(1, 10)},
        )
        assert_same_at_every_n(original, load_proto("m", original))


def test_split_slice_and_gather_on_channels_become_slices() -> None:
    original = model(
        [
            helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
            node("Slice", "b starts ends axes", "c"),
            node("Gather", "x one", "d", axis=1),
            node("Unsqueeze", "d one_axis", "e"),
            node("Concat", "c a e", axis=1),
        ],
        {
            "sizes": np.array([3, 1]),
            "starts": np.array([0, 0]),
            "ends": np.array([1, 2**62]),
            "axes": np.array([1, -1]),
            "one": np.array(1),
            "one_axis": np.array([1]),
        },
    )
    loaded = load_proto("m", original)
    assert {type(n) for n in loaded.graph.nodes} <= {g.Slice, g.Reshape, g.Concat, g.Identity}
    assert_same_at_every_n(original, loaded)


def test_everything_unsupported_is_listed_at_once_with_node_names() -> None:
    original = model(
        [
            node("Sin", "x", "a"),
            node("Cos", "a", "b"),
            node("Relu", "b", "c"),
            node("Sin", "c", "d"),
            node("Slice", "d first last axes back", "e"),
            node("Conv", "e w"),
        ],
        {
            "first": np.array([-1]),
            "last": np.array([-9]),
            "axes": np.array([3]),
            "back": np.array([-1]),
            "w": noise(2, 4, 3, 3),
        },
    )
    with pytest.raises(UnsupportedModelError) as caught:
        load_proto("m", original)
    text = str(caught.value)
    assert "Sin: the operator is not supported (in Sin_a, Sin_d; 2 nodes)" in text
    assert "Cos: the operator is not supported (in Cos_b; 1 node)" in text
    assert "Slice: step -1 is not supported" in text
    assert "Supported operators: Abs, Add, AveragePool" in text


def test_operators_of_other_domains_are_named_with_their_domain() -> None:
    original = model(
        [node("Relu", "x", "a"), node("FusedThing", "a", domain="com.example")], infer=False
    )
    original.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedModelError, match=r"com\.example\.FusedThing"):
        load_proto("m", original)


def test_an_open_image_size_must_be_given() -> None:
    original = model([node("Relu", "x")], shape=("N", 3, "height", "width"))
    with pytest.raises(UnsupportedModelError, match="has unknown sizes"):
        load_proto("m", original)
    loaded = load_proto("m", original, (3, 20, 24))
    assert loaded.graph.shape("y") == (3, 20, 24)
    with pytest.raises(UnsupportedModelError, match=r"\(4, 20, 24\) was requested"):
        load_proto("m", original, (4, 20, 24))


def test_a_network_that_ignores_its_input_is_refused() -> None:
    original = model([node("Relu", "c")], {"c": noise(1, 4)})
    with pytest.raises(UnsupportedModelError, match="y is the same for every image"):
        load_proto("m", original)


def test_a_tiny_file_cannot_ask_for_a_huge_constant() -> None:
    original = model(
        [node("ConstantOfShape", "shape", "c"), node("Add", "x c")],
        {"shape": np.array([1, 4, 2**20, 2**20])},
    )
    with pytest.raises(UnsupportedModelError):
        load_proto("m", original)
