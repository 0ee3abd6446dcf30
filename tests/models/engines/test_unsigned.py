"""Models with int8 activations compute with integers and keep their meaning."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from models import BUILT_IN_MODEL, load_classifier
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.saturation import pairs_saturate
from models.engines.unsigned import on_integers
from models.session import open_session
from tests.support.models.quantized import quantized, run_node_by_node, run_on_integers

DIGITS = {"preset": "digits"}
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(8, 1, 32, 32)).astype(np.float32)


def operators(model: bytes, folder: Path) -> list[str]:
    """Return ONNX Runtime's results for a model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node]


def in_int8(file: Path, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the file's own scores with int8 kernels, which ONNX Runtime does not use by default
    for a QDQ model on x86."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    rows = [session.run(None, {value.name: images[i : i + 1]})[0] for i in range(len(images))]
    scores: NDArray[np.float32] = np.concatenate(rows)
    return scores


@pytest.mark.parametrize("per_channel", [False, True], ids=["a tensor", "a channel"])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=["QDQ", "operators"])
def test_what_is_served_is_computed_on_integers_as_the_file_says(
    form: QuantFormat, per_channel: bool, tmp_path: Path
) -> None:
    file = quantized(
        BUILT_IN_MODEL,
        tmp_path / "digits.onnx",
        IMAGES,
        form,
        per_channel=per_channel,
        activations=QuantType.QInt8,
    )
    model = SessionModel.of(load_classifier(file, overrides=DIGITS))
    found = operators(model.data, tmp_path)
    assert found.count("QLinearConv") == 7
    assert "Conv" not in found
    engine = OnnxRuntimeEngine(model, max_batch=8, threads=1)
    scores = engine.run(list(IMAGES)).scores
    engine.close()
    assert len(np.unique(scores)) > 10
    np.testing.assert_array_equal(scores, in_int8(file, IMAGES))


def _model(nodes: list[onnx.NodeProto], outputs: dict[str, int]) -> ModelProto:
    constants = {
        "scale": np.float32(0.05),
        "zero": np.int8(-7),
        "shape": np.array([0, -1]),
    }
    return helper.make_model(
        helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 4, 4])],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
            [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


def _quantize(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [x, "scale", "zero"], [y], name=y)


def _dequantize(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [x, "scale", "zero"], [y], name=y)


POOL: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}


def _zeros(model: ModelProto) -> dict[str, str]:
    return {
        node.name: node.input[2]
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }


def test_moved_bytes_mean_the_same_to_the_bit() -> None:
    """This includes the maxima of windows that extend beyond the edge."""
    model = _model(
        [
            _quantize("x", "q"),
            helper.make_node("MaxPool", ["q"], ["pooled"], **POOL),
            helper.make_node("Concat", ["pooled", "pooled"], ["both"], axis=1),
            helper.make_node("Reshape", ["both", "shape"], ["flat"]),
            _dequantize("flat", "y"),
        ],
        {"y": TensorProto.FLOAT},
    )
    other = on_integers(model)
    assert _zeros(other) == {"q": "zero/+128", "y": "zero/+128"}
    (zero,) = (t for t in other.graph.initializer if t.name == "zero/+128")
    assert numpy_helper.to_array(zero).dtype == np.uint8
    # Beyond both ends of the range, too.
    x = RNG.normal(0, 10, (3, 2, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_on_integers(other, x), run_on_integers(model, x))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([_quantize("x", "q"), _dequantize("q", "y")], {"y": 1, "q": 3}),
        (
            [
                _quantize("x", "q"),
                helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
                _dequantize("q", "z"),
            ],
            {"y": 1, "z": 1},
        ),
        (
            [
                _quantize("x", "q"),
                helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT8),
                helper.make_node("Concat", ["q", "c"], ["both"], axis=1),
                _dequantize("both", "y"),
            ],
            {"y": 1},
        ),
        (
            [
                _quantize("x", "q"),
                helper.make_node("MaxPool", ["q"], ["pooled", "indices"], **POOL),
                _dequantize("pooled", "y"),
            ],
            {"y": 1, "indices": 7},
        ),
    ],
    ids=["output", "other reader", "joined with another", "indices"],
)
def test_what_others_read_as_int8_stays(
    nodes: list[onnx.NodeProto], outputs: dict[str, int]
) -> None:
    model = _model(nodes, outputs)
    assert on_integers(model) == model


def test_the_type_that_a_node_says_once_more_goes_with_the_zero_point() -> None:
    model = _model([_quantize("x", "q"), _dequantize("q", "y")], {"y": TensorProto.FLOAT})
    model.opset_import[0].version = 21
    model.ir_version = 10
    model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", TensorProto.INT8))
    other = on_integers(model)
    assert _zeros(other) == {"q": "zero/+128", "y": "zero/+128"}
    x = RNG.normal(size=(2, 2, 4, 4)).astype(np.float32)
    (found,) = ort.InferenceSession(other.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, x, atol=0.03)


def test_int8_that_stays_can_be_opened() -> None:
    """ONNX Runtime would write uint8 zero points and the type int8 into one node."""
    nodes = [
        _quantize("x", "a"),
        _dequantize("a", "b"),
        helper.make_node("Neg", ["b"], ["c"]),
        _quantize("c", "d"),
        helper.make_node("Slice", ["d", "one", "end", "two"], ["e"]),
        _dequantize("e", "f"),
        helper.make_node("Reshape", ["f", "shape"], ["y"]),
    ]
    model = _model(nodes, {"y": TensorProto.FLOAT})
    model.opset_import[0].version, model.ir_version = 21, 10
    for name, number in (("one", 1), ("two", 2), ("end", 4)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    x = RNG.normal(size=(3, 2, 4, 4)).astype(np.float32)
    for served in (model, on_integers(model)):
        (y,) = open_session(served.SerializeToString(), 1).run(None, {"x": x})
        np.testing.assert_array_equal(y, run_node_by_node(model, x))


@pytest.mark.parametrize("opset", [11, 17])
def test_nodes_need_no_names_and_may_be_of_an_old_opset(opset: int) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        _quantize("a", "b"),
        _dequantize("b", "c"),
        helper.make_node("Sin", ["c"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        _quantize("e", "f"),
        _dequantize("f", "g"),
        helper.make_node("Reshape", ["g", "shape"], ["y"]),
    ]
    for node in nodes:
        node.ClearField("name")
    model = _model(nodes, {"y": TensorProto.FLOAT})
    model.opset_import[0].version = opset
    x = RNG.normal(size=(3, 2, 4, 4)).astype(np.float32)
    (y,) = open_session(on_integers(model).SerializeToString(), 1).run(None, {"x": x})
    np.testing.assert_array_equal(y, run_node_by_node(model, x))


def test_numbers_that_are_rounded_twice_are_rounded_twice() -> None:
    nodes = [
        _quantize("x", "a"),
        _dequantize("a", "b"),
        helper.make_node("QuantizeLinear", ["b", "finer", "zero"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "finer", "zero"], ["y"]),
    ]
    model = _model(nodes, {"y": TensorProto.FLOAT})
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.03, np.float32), "finer"))
    x = RNG.normal(size=(3, 2, 4, 4)).astype(np.float32)
    (y,) = open_session(on_integers(model).SerializeToString(), 1).run(None, {"x": x})
    np.testing.assert_array_equal(y, run_node_by_node(model, x))


def test_what_a_branch_may_read_stays_as_it_is() -> None:
    def branch(name: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([_dequantize("q", name)], name, [], [value])

    kept, dropped = branch("then"), branch("else")
    some = helper.make_node("Constant", [], ["some"], value=numpy_helper.from_array(np.array(True)))
    chosen = helper.make_node("If", ["some"], ["y"], then_branch=kept, else_branch=dropped)
    model = _model([_quantize("x", "q"), some, chosen], {"y": TensorProto.FLOAT})
    assert on_integers(model) == model


C = 16


def _behind(activation: onnx.NodeProto, zero: Any, **constants: Any) -> ModelProto:
    """Return two convolutions with an activation and a quantizer with this zero point between
    them."""
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "step": np.float32(0.03),
        "middle": np.uint8(128),
        "scale": np.float32(0.02),
        "zero": zero,
        "last": np.float32(0.05),
        "end": np.uint8(111),
        **{name: rng.integers(-127, 128, (C, C, 3, 3)).astype(np.int8) for name in ("v", "w")},
        "s": np.linspace(0.0005, 0.001, C).astype(np.float32),
        "z": np.zeros(C, np.int8),
        **constants,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "middle"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "step", "middle"], ["xd"]),
        helper.make_node("DequantizeLinear", ["v", "s", "z"], ["vd"], axis=0),
        helper.make_node("Conv", ["xd", "vd"], ["c"], name="first", pads=[1] * 4),
        activation,
        helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="d"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "wd"], ["e"], name="second", pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["e", "last", "end"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "last", "end"], ["y"]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", C, 6, 6])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", C, 6, 6])
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "net", [image], [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


RELU = helper.make_node("Relu", ["c"], ["r"])
CLIP = helper.make_node("Clip", ["c", "low", "high"], ["r"])
BOUNDS: dict[str, Any] = {"low": np.float32(0), "high": np.float32(0.6)}


@pytest.mark.parametrize("saturate", [False, True], ids=["exact pairs", "pairs that saturate"])
@pytest.mark.parametrize(
    ("activation", "zero", "most"),
    [
        (RELU, np.int8(0), 127),
        (RELU, np.int8(-128), None),
        (RELU, np.int8(-28), 155),
        (RELU, np.uint8(0), None),
        (RELU, np.uint8(128), 127),
        (CLIP, np.int8(0), 30),
        (CLIP, np.uint8(0), 30),
        (CLIP, np.int8(-128), 30),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_behind_a_relu_or_clip_the_lowest_code_is_0_and_convolutions_are_on_integers(
    activation: onnx.NodeProto, zero: Any, most: int | None, saturate: bool, tmp_path: Path
) -> None:
    model = _behind(activation, zero, **BOUNDS)
    other = on_integers(model, pairs_saturate=saturate)
    found = operators(other.SerializeToString(), tmp_path)
    assert found.count("QLinearConv") == 2
    assert not {"Conv", "FusedConv", "Relu", "Clip"}.intersection(found)
    bounds = [node for node in other.graph.node if node.op_type == "Min"]
    arrays = {t.name: numpy_helper.to_array(t) for t in other.graph.initializer}
    assert [arrays[node.input[1]] for node in bounds] == ([] if most is None else [most])
    x = RNG.normal(0, 2, (3, C, 6, 6)).astype(np.float32)
    expected = run_node_by_node(model, x)
    assert len(np.unique(expected)) > 20
    # Node by node the codes are the same; sums of integers may round the other way.
    np.testing.assert_array_equal(run_node_by_node(other, x), expected)
    if saturate or not pairs_saturate():
        (y,) = ort.InferenceSession(other.SerializeToString()).run(None, {"x": x})
        steps = np.abs(y - expected) / np.float32(0.05)
        assert steps.max() < 1.01
        assert (steps > 0.5).mean() < 0.01


@pytest.mark.parametrize(
    ("activation", "zero"),
    [
        (helper.make_node("Clip", ["c", "high"], ["r"]), np.uint8(100)),
        (helper.make_node("LeakyRelu", ["c"], ["r"]), np.uint8(100)),
        (RELU, np.array([3, 5] * (C // 2), np.uint8)),
    ],
    ids=["a clip above 0", "a leaky relu", "zero points of channels"],
)
def test_other_activations_stay(activation: onnx.NodeProto, zero: NDArray[Any]) -> None:
    model = _behind(activation, zero, **BOUNDS)
    if zero.size > 1:
        scales = np.full(C, 0.02, np.float32)
        (scale,) = (t for t in model.graph.initializer if t.name == "scale")
        scale.CopyFrom(numpy_helper.from_array(scales, "scale"))
    other = on_integers(model)
    assert _types(other) == _types(model)
    assert {"r", "q"} <= {name for node in other.graph.node for name in node.output}


def _types(model: ModelProto) -> list[tuple[str, str]]:
    """Return the operators of activations with their zero points."""
    return [(n.op_type, n.input[2]) for n in model.graph.node if n.name in ("q", "d")]


def test_an_activation_that_others_read_stays_for_them() -> None:
    model = _behind(RELU, np.int8(0))
    model.graph.node.append(helper.make_node("Identity", ["r"], ["kept"]))
    model.graph.output.append(helper.make_tensor_value_info("kept", TensorProto.FLOAT, None))
    other = on_integers(model)
    assert [node.op_type for node in other.graph.node].count("Relu") == 1
    x = RNG.normal(size=(1, C, 6, 6)).astype(np.float32)
    for found, expected in zip(
        ort.InferenceSession(other.SerializeToString(), _unjoined()).run(None, {"x": x}),
        ort.InferenceSession(model.SerializeToString(), _unjoined()).run(None, {"x": x}),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def _unjoined() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def test_where_pairs_saturate_filters_of_large_codes_are_uint8() -> None:
    """Filters after an int8 Relu, and filters with few bits, stay int8."""
    model = _behind(RELU, np.int8(0))
    first, second = (_filter_type(on_integers(model, pairs_saturate=True), v) for v in "vw")
    assert (first, second) == (TensorProto.UINT8, TensorProto.INT8)
    few = _behind(RELU, np.uint8(0), v=np.full((C, C, 3, 3), 64, np.int8))
    assert _filter_type(on_integers(few, pairs_saturate=True), "v") == TensorProto.INT8
    assert _filter_type(on_integers(few, pairs_saturate=True), "w") == TensorProto.UINT8
    assert _filter_type(on_integers(few), "w") == TensorProto.INT8


def _filter_type(model: ModelProto, name: str) -> int:
    (node,) = (node for node in model.graph.node if node.output[0] == f"{name}d")
    (kind,) = (t.data_type for t in model.graph.initializer if t.name == node.input[0])
    return int(kind)


def test_this_machines_sums_are_what_its_probe_says() -> None:
    model = _behind(RELU, np.uint8(0))
    x = np.full((1, C, 6, 6), 9, np.float32)
    expected = run_node_by_node(model, x)
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert (np.abs(y - expected).max() > 0.06) == pairs_saturate()


W = 8  # pixels a side


def _alone(operator: str, rows: NDArray[np.int8], **attributes: Any) -> ModelProto:
    """Return one integer product; `rows` has one row per result, with its terms in the order of
    addition."""
    kernel, groups = attributes.get("kernel_shape", [1, 1]), attributes.get("group", 1)
    filter_ = rows
    if operator == "Conv":
        filter_ = np.moveaxis(rows.reshape(len(rows), *kernel, -1), -1, 1)
    elif not attributes.get("transB"):
        filter_ = rows.T
    channels = filter_.shape[1] * groups if operator == "Conv" else rows.shape[1]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "low"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "one", "low"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "one", "zero"], ["wd"]),
        helper.make_node(operator, ["xd", "wd"], ["c"], **attributes),
        helper.make_node("QuantizeLinear", ["c", "step", "end"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "step", "end"], ["y"]),
    ]
    largest = 255 * np.abs(rows.astype(int).sum(1)).max()
    weights = {
        "one": np.float32(1),
        "low": np.uint8(0),
        "zero": np.int8(0),
        "w": np.ascontiguousarray(filter_),
        "step": np.float32(largest / 200),
        "end": np.uint8(0 if rows.sum() > 0 else 255),
    }
    shape: list[int | str] = ["N", channels]
    if operator == "Conv":
        shape += [W, W]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "net", [image], [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _rows(count: int, terms: int, pair: tuple[int, int]) -> NDArray[np.int8]:
    """Return rows of pairs, of which every second one is reversed, so the neighbours of two pairs
    are equal."""
    a, b = pair
    return np.tile(np.resize(np.array([a, b, b, a], np.int8), terms), (count, 1))


PRODUCTS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "3×3": ("Conv", 16, 9 * 16, {"kernel_shape": [3, 3]}),
    "3×3 of few channels": ("Conv", 16, 9 * 4, {"kernel_shape": [3, 3]}),
    "3×3 of pixels": ("Conv", 16, 9 * 3, {"kernel_shape": [3, 3]}),
    "1×1": ("Conv", 32, 24, {"kernel_shape": [1, 1]}),
    "groups": ("Conv", 16, 9 * 8, {"kernel_shape": [3, 3], "group": 2}),
    "groups of one channel": ("Conv", 32, 9, {"kernel_shape": [3, 3], "group": 16}),
    "Gemm": ("Gemm", 10, 64, {}),
    "Gemm, transposed": ("Gemm", 10, 64, {"transB": 1}),
    "MatMul": ("MatMul", 10, 64, {}),
}


def _outcome(model: ModelProto, *, saturate: bool) -> tuple[int, float]:
    """Return the type of the served filter, and the largest difference of the products in steps."""
    served = on_integers(model, pairs_saturate=saturate)
    (image,) = model.graph.input
    sides = [side.dim_value for side in image.type.tensor_type.shape.dim[1:]]
    x = np.full((2, *sides), 255, np.float32)
    (y,) = ort.InferenceSession(served.SerializeToString()).run(None, {"x": x})
    expected = run_node_by_node(model, x)
    (step,) = (t for t in model.graph.initializer if t.name == "step")
    steps = np.abs(y - expected).max() / numpy_helper.to_array(step)
    return _filter_type(served, "w"), float(steps)


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_filter_is_widened_only_where_neighbours_in_a_sum_saturate(
    product: str, sign: int
) -> None:
    """255 · (127 + 1) fits into 16 bits and 255 · (127 + 2) does not; in another order, 255 · (127
    + 127) would not fit either."""
    operator, count, terms, attributes = PRODUCTS[product]

    def outcome(pair: tuple[int, int], *, saturate: bool) -> tuple[int, float]:
        rows = _rows(count, terms, pair) * np.int8(sign)
        return _outcome(_alone(operator, rows, **attributes), saturate=saturate)

    kind, steps = outcome((127, 1), saturate=True)
    assert kind == TensorProto.INT8
    assert steps < 1.01
    kind, steps = outcome((127, 2), saturate=True)
    assert kind == TensorProto.UINT8
    assert steps < 1.01
    kind, steps = outcome((127, 127), saturate=False)
    assert kind == TensorProto.INT8
    assert (steps > 20) == pairs_saturate()


@pytest.mark.parametrize("kernel", [[3, 3], [5, 5], [3, 5]], ids=str)
@pytest.mark.parametrize("channels", [2, 8, 33])
def test_sums_of_depthwise_convolutions_never_saturate(channels: int, kernel: list[int]) -> None:
    rows = np.full((channels, kernel[0] * kernel[1]), 127, np.int8)
    model = _alone("Conv", rows, kernel_shape=kernel, group=channels)
    kind, steps = _outcome(model, saturate=True)
    assert kind == TensorProto.INT8
    assert steps < 1.01


def test_the_largest_code_of_an_input_counts() -> None:
    """After an int8 Relu, the largest number is 127, and two products with it fit into 16 bits."""
    pair = np.full((C, C, 3, 3), 127, np.int8)
    behind = _behind(RELU, np.int8(0), w=pair)
    assert _filter_type(on_integers(behind, pairs_saturate=True), "w") == TensorProto.INT8
    bounded = _behind(CLIP, np.uint8(0), w=pair, low=np.float32(0), high=np.float32(2.6))
    assert _filter_type(on_integers(bounded, pairs_saturate=True), "w") == TensorProto.UINT8
