"""Quantized models from various programs load and compute the same as before."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic

from kernels.problems.precision import Precision
from models import BUILT_IN_MODEL, DeviceKind, load_classifier, open_engine
from models.errors import NoKernelsError, UnsupportedModelError
from models.graph import Conv, Dequantize, Gemm, Quantize
from models.onnx_loader import load_proto
from models.rewrite import RULES_OF_INTEGERS, rewrite
from tests.support.models.onnx_chains import node, noise
from tests.support.models.quantized import quantized, quietly, run_node_by_node, run_on_integers
from tests.support.models.reference import run_reference

Arrays = dict[str, NDArray[Any]]

DIGITS = {"preset": "digits"}
PIXELS = np.random.default_rng(3).integers(0, 256, (6, 32, 32, 1), np.uint8)
IMAGES = (PIXELS.transpose(0, 3, 1, 2) / 255).astype(np.float32)

FORMS = [
    pytest.param(QuantFormat.QDQ, True, QuantType.QUInt8, id="qdq-channel"),
    pytest.param(QuantFormat.QDQ, False, QuantType.QInt8, id="qdq-tensor-signed"),
    pytest.param(QuantFormat.QOperator, True, QuantType.QUInt8, id="qoperator-channel"),
    pytest.param(QuantFormat.QOperator, False, QuantType.QUInt8, id="qoperator-tensor"),
]


@pytest.mark.parametrize(("form", "per_channel", "activations"), FORMS)
def test_a_quantized_model_computes_what_the_file_does_at_every_n(
    tmp_path: Path, form: QuantFormat, per_channel: bool, activations: QuantType
) -> None:
    """Results are bit-identical in the normalised model, in a batch, and node by node in NumPy."""
    path = quantized(
        BUILT_IN_MODEL,
        tmp_path / "q.onnx",
        IMAGES,
        form,
        per_channel=per_channel,
        activations=activations,
    )
    classifier = load_classifier(path, overrides=DIGITS)
    expected = run_on_integers(path, IMAGES)
    network = classifier.network
    assert network.quantized
    assert not network.no_kernels
    np.testing.assert_array_equal(run_on_integers(network.proto, IMAGES), expected)
    typed = run_reference(network.graph, {network.graph.inputs[0]: IMAGES}, np.float32)
    np.testing.assert_array_equal(typed[network.graph.outputs[0]], expected)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=4).warm_up()
    assert engine.precision is Precision.INT8
    assert engine.max_batch == 4
    together = engine.run(PIXELS[:4]).scores
    alone = np.concatenate([engine.run(PIXELS[i : i + 1]).scores for i in range(4)])
    np.testing.assert_array_equal(together, alone)
    engine.close()


def test_weights_keep_the_grid_of_their_integers(tmp_path: Path) -> None:
    path = quantized(BUILT_IN_MODEL, tmp_path / "q.onnx", IMAGES)
    graph = load_proto("q", onnx.load(path)).graph
    kinds = Counter(type(each) for each in graph.nodes)
    assert kinds[Quantize] >= kinds[Conv] > 0
    assert kinds[Quantize] == kinds[Dequantize]
    products = [each for each in graph.nodes if isinstance(each, Conv | Gemm)]
    for product in products:
        weight, grid = graph.weights[product.weight], graph.grids[product.weight]
        assert len(grid.scale) == len(weight)
        assert 0 < abs(grid.numbers).max() <= 128
        np.testing.assert_array_equal(grid.weight, weight)


def test_scales_that_depend_on_the_batch_keep_images_apart(tmp_path: Path) -> None:
    """DynamicQuantizeLinear computes its scale from all images of a batch."""
    path = tmp_path / "dynamic.onnx"
    with quietly():
        quantize_dynamic(BUILT_IN_MODEL, path, weight_type=QuantType.QUInt8)
    classifier = load_classifier(path, overrides=DIGITS)
    assert classifier.network.no_kernels
    assert classifier.network.quantized
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=4).warm_up()
    assert engine.precision is Precision.INT8
    scores = np.concatenate([engine.run(PIXELS[i : i + 1]).scores for i in range(4)])
    np.testing.assert_allclose(scores, run_on_integers(path, IMAGES[:4]), rtol=1e-5, atol=1e-4)
    engine.close()


def _model(nodes: list[Any], weights: Arrays, opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 4, 6, 6))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


STEPS: Arrays = {
    "s": np.array(0.05, np.float32),
    "z": np.array(120, np.uint8),
    "t": np.array(0.08, np.float32),
    "u": np.array(100, np.uint8),
}
Q, D = node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "r t u", "y")


def contrib(op: str, inputs: str, **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, "r", domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    "middle",
    [
        contrib("QLinearAdd", "q s z q s z t u"),
        contrib("QLinearMul", "q s z q s z t u"),
        contrib("QLinearConcat", "t u q s z q s z", axis=1),
        contrib("QLinearGlobalAveragePool", "q s z t u", channels_last=0),
        contrib("QLinearAveragePool", "q s z t u", kernel_shape=[2, 2], channels_last=0),
        contrib("QLinearLeakyRelu", "q s z t u", alpha=0.25),
        contrib("QLinearSigmoid", "q s z t u"),
        contrib("QLinearSoftmax", "q s z t u", axis=1, opset=18),
    ],
    ids=lambda each: each.op_type,
)
def test_operators_on_integers_become_those_on_floats(middle: onnx.NodeProto) -> None:
    """Results differ by at most one step: the library's kernels use tables, or divide
    differently."""
    proto = _model([Q, middle, D], STEPS)
    loaded = load_proto("small", proto)
    images = noise(3, 4, 6, 6)
    (typed,) = run_reference(loaded.graph, {"x": images}).values()
    expected = run_on_integers(proto, images)
    assert abs(run_on_integers(loaded.proto, images) - expected).max() <= 0.0801
    assert abs(typed - expected).max() <= 0.0801
    assert expected.std() > 0


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_matrix_of_integers_has_its_scales_along_its_outputs(
    transposed: int, per_channel: bool
) -> None:
    # Two products with the largest byte fit 16 bits, in which a CPU without VNNI adds them.
    w = np.random.default_rng(0).integers(-63, 64, (144, 5)).astype(np.int8)
    scales = np.linspace(0.001, 0.003, 5).astype(np.float32)
    weights = STEPS | {
        "rows": np.array([0, 144]),
        "w": w.T.copy() if transposed else w,
        "ws": scales if per_channel else scales[2],
        "wz": np.zeros(5 if per_channel else (), np.int8),
        "b": np.arange(5, dtype=np.int32) * 1000,
    }
    nodes = [
        Q,
        node("Reshape", "q rows", "f"),
        contrib("QGemm", "f s z w ws wz b t u", transB=transposed),
        D,
    ]
    proto = _model(nodes, weights)
    loaded = load_proto("small", proto)
    images = noise(3, 4, 6, 6)
    expected = run_on_integers(proto, images)
    np.testing.assert_array_equal(run_on_integers(loaded.proto, images), expected)
    (typed,) = run_reference(loaded.graph, {"x": images}, np.float32).values()
    np.testing.assert_allclose(typed, expected, atol=0.0801)
    (gemm,) = [each for each in loaded.graph.nodes if isinstance(each, Gemm)]
    assert len(loaded.graph.grids[gemm.weight].scale) == (5 if per_channel else 1)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_product_of_integers_multiplies_its_bias_too(alpha: float) -> None:
    rng = np.random.default_rng(0)
    weights = STEPS | {
        "rows": np.array([0, 144]),
        "w": rng.integers(-63, 64, (5, 144)).astype(np.int8),
        "ws": np.array(0.002, np.float32),
        "wz": np.array(0, np.int8),
        "b": np.array([-9000, -4000, 0, 5000, 9000], np.int32),
    }
    product = contrib("QGemm", "f s z w ws wz b t u", transB=1, alpha=alpha)
    proto = _model([Q, node("Reshape", "q rows", "f"), product, D], weights)
    loaded = load_proto("small", proto)
    images = noise(3, 4, 6, 6)
    expected = run_on_integers(proto, images)
    assert expected.std() > 0.4
    assert abs(run_on_integers(loaded.proto, images) - expected).max() <= 0.0801
    (typed,) = run_reference(loaded.graph, {"x": images}, np.float32).values()
    assert abs(typed - expected).max() <= 0.0801


@pytest.mark.parametrize("bias", [-(2**31), 2**31 - 1])
def test_a_bias_with_which_sums_overflow_is_refused(bias: int) -> None:
    weights = STEPS | {
        "rows": np.array([0, 144]),
        "w": np.ones((144, 5), np.int8),
        "ws": np.array(0.002, np.float32),
        "wz": np.array(0, np.int8),
        "b": np.array([0, 0, bias, 0, 0], np.int32),
    }
    product = contrib("QGemm", "f s z w ws wz b t u")
    proto = _model([Q, node("Reshape", "q rows", "f"), product, D], weights)
    with pytest.raises(UnsupportedModelError, match="sums overflow"):
        load_proto("small", proto)


def test_weights_alone_as_integers_leave_a_model_of_floats() -> None:
    weights: Arrays = {"w": np.ones((4, 4, 1, 1), np.int8), "s": np.array(0.5, np.float32)}
    nodes = [node("DequantizeLinear", "w s", "d"), node("Conv", "x d", "y")]
    loaded = load_proto("small", _model(nodes, weights))
    assert not loaded.quantized
    assert not loaded.no_kernels
    images = noise(2, 4, 6, 6)
    (typed,) = run_reference(loaded.graph, {"x": images}).values()
    np.testing.assert_allclose(typed, np.repeat(images.sum(1, keepdims=True), 4, 1) / 2, 1e-5, 1e-6)


def test_arithmetic_on_what_only_stands_for_numbers_is_not_that_of_the_numbers() -> None:
    nodes = [Q, node("Add", "q q", "r"), D]
    with pytest.raises(NoKernelsError, match="Add: it computes on 8-bit integers"):
        load_proto("small", _model(nodes, STEPS))


def test_a_scale_that_is_no_number_is_refused() -> None:
    proto = _model([Q, node("DequantizeLinear", "q s z")], STEPS | {"s": np.array(0, np.float32)})
    with pytest.raises(UnsupportedModelError, match="it must be a number above 0"):
        load_proto("small", proto)


def test_each_reader_of_integers_counts() -> None:
    """A constant of integers is dequantized for each use, so few bytes must not become many
    numbers."""
    nodes = [node("DequantizeLinear", "w s", "d")]
    names = ["x", *(f"v{i}" for i in range(4000)), "y"]
    nodes += [node("Conv", f"{a} d", b) for a, b in pairwise(names)]
    weights: Arrays = {"w": np.ones((4, 4, 41, 41), np.int8), "s": np.array(0.5, np.float32)}
    for each in nodes[1:]:
        each.attribute.append(helper.make_attribute("pads", [20] * 4))
    with pytest.raises(UnsupportedModelError, match="constant numbers, counted once"):
        load_proto("small", _model(nodes, weights))


def test_int8_is_a_quantized_models_precision_alone(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"convoy quantize .*digits.onnx photos/ -o"):
        load_classifier(BUILT_IN_MODEL, overrides=DIGITS | {"precision": "int8"})
    path = quantized(BUILT_IN_MODEL, tmp_path / "q.onnx", IMAGES)
    for given in ({}, {"precision": "int8"}):
        assert load_classifier(path, overrides=DIGITS | given).precision is Precision.INT8


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_scale_for_each_channel_of_activations_leaves_that_layer_in_float(kind: type) -> None:
    """The preceding layer cannot take these scales: NNCF's depthwise layers after a HardSwish."""
    rng = np.random.default_rng(1)
    weights: Arrays = {
        "s": np.geomspace(0.002, 0.05, 4).astype(np.float32),
        "z": (np.array([17, 30, 5, 100]) + np.iinfo(kind).min).astype(kind),
        "w": rng.integers(-127, 128, (4, 1, 3, 3)).astype(np.int8),
        "ws": np.linspace(0.001, 0.003, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8),
        "t": np.array(0.02, np.float32),
        "u": np.array(77, np.uint8),
    }
    nodes = [
        node("HardSwish", "x", "h"),
        node("QuantizeLinear", "h s z", "q", axis=1),
        node("DequantizeLinear", "q s z", "d", axis=1),
        node("DequantizeLinear", "w ws wz", "f", axis=0),
        node("Conv", "d f", "c", group=4, pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c t u", "cq"),
        node("DequantizeLinear", "cq t u", "y"),
    ]
    proto = _model(nodes, weights)
    loaded = load_proto("small", proto)
    assert not loaded.no_kernels
    images = noise(5, 4, 6, 6) * 3
    (typed,) = run_reference(loaded.graph, {"x": images}).values()
    expected = run_node_by_node(proto, images)
    assert expected.std(axis=(0, 2, 3)).min() > 0.05
    assert np.abs(run_on_integers(loaded.proto, images) - expected).max() < 0.0202
    steps = np.abs(typed - expected) / 0.02
    assert steps.max() < 1.01  # a number between two may be rounded either way
    assert (steps > 0.5).mean() < 0.01
    kinds = [type(each).__name__ for each in rewrite(loaded.graph, RULES_OF_INTEGERS).graph.nodes]
    ahead, behind = ["ScaleShift", "Quantize"], ["Dequantize", "ScaleShift"]
    assert kinds[1:-3] == [*ahead, *behind]
    (conv,) = (each for each in loaded.graph.nodes if isinstance(each, Conv))
    assert conv.problem.precision is Precision.FP32


def test_channels_that_are_read_otherwise_than_they_were_written_are_refused() -> None:
    weights: Arrays = {
        "s": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        "other": np.array([0.1, 0.2, 0.35, 0.4], np.float32),
        "one": np.array(0.4, np.float32),
        "z": np.zeros(4, np.uint8),
        "none": np.array(0, np.uint8),
    }
    for read in ("q other z", "q one none", "p one none"):
        nodes = [
            node("QuantizeLinear", "x s z", "q", axis=1),
            node("MaxPool", "q", "p", kernel_shape=[1, 1]),
            node("DequantizeLinear", read, "y", **({} if "one" in read else {"axis": 1})),
        ]
        with pytest.raises(NoKernelsError, match="only one per tensor is supported"):
            load_proto("small", _model(nodes, weights))
