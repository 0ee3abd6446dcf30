"""A quantized model has the requested ranges, float layers and biases."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.networks.light import classifier, images_of
from benchmarks.networks.vit import Vit, vit
from kernels.problems.precision import HALF, Precision
from models import BUILT_IN_MODEL
from models.engines.tolerance import relative_error
from models.graph import Attention, Quantize
from models.onnx_loader import load_proto
from models.preprocessing import normalised
from models.quantization.candidate import (
    Method,
    calibrate,
    layers,
    quantized,
    with_corrected_biases,
)
from tests.support.models.quantized import run_node_by_node, run_on_integers
from tests.support.models.reference import run_reference

PROTO = load_proto("digits", onnx.load(BUILT_IN_MODEL)).proto
IMAGES = np.random.default_rng(1).random((6, 1, 32, 32), np.float32)


@pytest.mark.parametrize("method", list(Method))
def test_ranges_hold_what_images_give(method: Method) -> None:
    ranges = calibrate(PROTO, IMAGES, method)
    low, high = ranges[PROTO.graph.input[0].name]
    assert low <= 0.01
    assert 0.9 < high <= 1.001
    assert {value for node in PROTO.graph.node for value in node.output} <= ranges.keys()


def test_layers_are_products_with_what_follows_them() -> None:
    found = layers(PROTO)
    operators = {node.name: node.op_type for node in PROTO.graph.node}
    assert {operators[name] for name in found} == {"Conv", "Gemm"}
    members = [name for names in found.values() for name in names]
    assert sorted(members) == sorted(operators)
    for names in found.values():
        assert not {"Conv", "Gemm"} & {operators[name] for name in names[1:]}


def test_a_layer_in_float_is_left_as_it_is() -> None:
    ranges = calibrate(PROTO, IMAGES, Method.MIN_MAX)
    first, *_ = layers(PROTO)
    weight = next(node.input[1] for node in PROTO.graph.node if node.name == first)
    for in_float in ((), (first,)):
        result = quantized(PROTO, ranges, in_float)
        onnx.checker.check_model(result)
        kept = {tensor.name for tensor in result.graph.initializer}
        assert (weight in kept) is bool(in_float)
    everything = [node.name for node in PROTO.graph.node]
    scores = run_on_integers(quantized(PROTO, ranges, everything), IMAGES)
    np.testing.assert_array_equal(scores, run_on_integers(PROTO, IMAGES))


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
def test_a_bias_is_multiplied_by_beta(beta: float) -> None:
    """torch.addmm(bias, x, w, beta=...) exports such a Gemm."""
    rng = np.random.default_rng(3)
    constants = {
        "c": rng.normal(size=(3, 3, 2, 2)),
        "v": rng.normal(size=(5, 12)),
        "b": rng.normal(0, 20, 5),
        "u": rng.normal(size=(4, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "c"], ["y"], name="conv", strides=[4, 4]),
        helper.make_node("Flatten", ["y"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "v", "b"], ["g"], name="gemm", transB=1, beta=beta),
        helper.make_node("Gemm", ["g", "u"], ["scores"], name="last", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", 1, ["N", 4])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    images = rng.random((6, 3, 8, 8), np.float32)
    result = quantized(model, calibrate(model, images, Method.MIN_MAX))
    expected = run_node_by_node(model, images)
    for scores in (run_node_by_node(result, images), run_on_integers(result, images)):
        assert relative_error(scores, expected) < 0.05


def test_corrected_biases_take_the_mean_error_of_the_weights_away() -> None:
    """The first layer's mean output is much nearer to the float model's."""
    ranges = calibrate(PROTO, IMAGES, Method.MIN_MAX)
    corrected = with_corrected_biases(PROTO, ranges, IMAGES)
    conv = next(node for node in PROTO.graph.node if node.op_type == "Conv")
    again = next(node for node in corrected.graph.node if node.name == conv.name)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in PROTO.graph.initializer}
    changed = {tensor.name: numpy_helper.to_array(tensor) for tensor in corrected.graph.initializer}
    rounded = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in quantized(PROTO, ranges).graph.initializer
    }
    integers, scale = rounded[f"{conv.input[1]}_quantized"], rounded[f"{conv.input[1]}_scale"]
    error = integers * scale[:, np.newaxis, np.newaxis, np.newaxis] - weights[conv.input[1]]
    shift = error.sum(axis=(2, 3)) @ IMAGES.mean(axis=(0, 2, 3))
    before = weights[conv.input[2]] if len(conv.input) > 2 else 0
    np.testing.assert_allclose(changed[again.input[2]], before - shift, rtol=1e-4, atol=1e-7)
    assert abs(shift).max() > 1e-5


def small_model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    channels: int,
    outputs: dict[str, int],
) -> onnx.ModelProto:
    """Return a model of images of 8×8 pixels; `outputs` has the channels of each."""
    x = helper.make_tensor_value_info("x", 1, [1, channels, 8, 8])
    values = [helper.make_tensor_value_info(name, 1, [1, k, 8, 8]) for name, k in outputs.items()]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], values, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_filter_of_a_group_is_corrected_by_the_means_of_its_channels() -> None:
    draw = np.random.default_rng(5)
    weight = draw.standard_normal((6, 2, 1, 1)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="y", group=2)
    proto = small_model([conv], {"w": weight}, 4, {"y": 6})
    images = draw.random((3, 4, 8, 8), np.float32) + np.arange(4, dtype=np.float32)[:, None, None]
    ranges = calibrate(proto, images, Method.MIN_MAX)
    rounded = {t.name: numpy_helper.to_array(t) for t in quantized(proto, ranges).graph.initializer}
    error = rounded["w_quantized"] * rounded["w_scale"].reshape(6, 1, 1, 1) - weight
    means = images.mean(axis=(0, 2, 3)).reshape(2, 2)[[0, 0, 0, 1, 1, 1]]  # of each filter
    expected = -(error[:, :, 0, 0] * means).sum(axis=1)
    made = with_corrected_biases(proto, ranges, images).graph
    (bias,) = (numpy_helper.to_array(t) for t in made.initializer if t.name == "y/corrected")
    np.testing.assert_allclose(bias, expected, rtol=1e-4, atol=1e-7)
    assert abs(expected).max() > 1e-4


def test_a_part_of_a_concat_that_is_an_output_keeps_its_own_scale() -> None:
    weights = {
        "w1": np.full((2, 1, 1, 1), 1.0, np.float32),
        "w2": np.full((2, 1, 1, 1), 5.0, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w2"], ["b"], name="b"),
        helper.make_node("Concat", ["a", "b"], ["y"], name="y", axis=1),
    ]
    proto = small_model(nodes, weights, 1, {"a": 2, "y": 4})
    ranges = calibrate(
        proto, np.random.default_rng(3).random((4, 1, 8, 8), np.float32), Method.MIN_MAX
    )
    found = {t.name: numpy_helper.to_array(t) for t in quantized(proto, ranges).graph.initializer}
    assert found["b_scale"] == found["y_scale"] > 4 * found["a_scale"]


def test_an_average_behind_a_sum_has_bytes_on_both_sides_and_a_scale_of_its_own() -> None:
    sizes = np.array([1.0, 3.0], np.float32).reshape(2, 1, 1, 1)
    weight = numpy_helper.from_array(np.broadcast_to(sizes, (2, 1, 1, 1)).copy(), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="c"),
        helper.make_node("Conv", ["x", "w"], ["d"], name="d"),
        helper.make_node("Add", ["c", "d"], ["s"], name="s"),
        helper.make_node("GlobalAveragePool", ["s"], ["y"], name="y"),
    ]
    values = [helper.make_tensor_value_info(*each) for each in (("x", 1, [1, 1, 8, 8]),)]
    output = helper.make_tensor_value_info("y", 1, [1, 2, 1, 1])
    graph = helper.make_graph(nodes, "g", values, [output], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    images = np.random.default_rng(3).random((4, 1, 8, 8), np.float32)
    ranges = calibrate(proto, images, Method.MIN_MAX)
    result = quantized(proto, ranges)
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    assert scales["y_scale"] < 0.8 * scales["s_scale"]
    left = quantized(proto, ranges, ["y"])
    assert "y_scale" not in {tensor.name for tensor in left.graph.initializer}


def test_parts_of_a_concat_have_its_scale_unless_another_node_reads_them() -> None:
    weights = {
        name: np.full((2, channels, 1, 1), size, np.float32)
        for name, channels, size in (("w1", 1, 1.0), ("w2", 1, 5.0), ("w3", 2, 0.2), ("w4", 4, 0.1))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w2"], ["b"], name="b"),
        helper.make_node("Concat", ["a", "b"], ["ab"], name="ab", axis=1),
        helper.make_node("Conv", ["a", "w3"], ["c"], name="c"),
        helper.make_node("Conv", ["ab", "w4"], ["d"], name="d"),
        helper.make_node("Relu", ["d"], ["e"], name="e"),
        helper.make_node("Concat", ["c", "e"], ["y"], name="y", axis=1),
    ]
    proto = small_model(nodes, weights, 1, {"y": 4})
    images = np.random.default_rng(3).random((4, 1, 8, 8), np.float32)
    ranges = calibrate(proto, images, Method.MIN_MAX)

    def scales(in_float: tuple[str, ...] = ()) -> dict[str, float]:
        made = quantized(proto, ranges, in_float).graph.initializer
        return {
            tensor.name.removesuffix("_scale"): numpy_helper.to_array(tensor).item()
            for tensor in made
            if tensor.name.endswith("_scale") and not tensor.dims
        }

    found = scales()
    assert found["b"] == found["ab"] > 4 * found["a"]  # c reads a, too
    assert found["c"] == found["e"] == found["y"]  # the Relu is part of the convolution
    alone = scales(("y",))
    assert alone["c"] != alone["e"]


def test_attention_stays_in_half_precision() -> None:
    proto = vit(Vit(side=32, patch=8, width=32, depth=2, heads=2, hidden=64, classes=7))
    network = classifier("vit", proto)
    images = normalised(images_of(network, 4), network.preprocessing)
    ranges = calibrate(network.network.proto, images, Method.MIN_MAX)
    in_bytes = classifier("vit", quantized(network.network.proto, ranges))
    graph = replace(in_bytes, precision=Precision.INT8).rewritten.graph
    attentions = [node for node in graph.nodes if isinstance(node, Attention)]
    assert len(attentions) == 2
    for node in attentions:
        stored = {graph.values[name].stored for name in (node.q, node.k, node.v, node.output)}
        assert stored == {HALF}
    assert any(isinstance(node, Quantize) for node in graph.nodes)
    (expected,) = run_reference(network.network.graph, {"image": images}).values()
    (scores,) = run_reference(graph, {"image": images}).values()
    assert relative_error(scores.reshape(4, 7), expected.reshape(4, 7)) < 0.05
    assert np.array_equal(scores.argmax(axis=-1), expected.argmax(axis=-1))
