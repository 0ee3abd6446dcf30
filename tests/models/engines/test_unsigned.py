"""Models with activations of int8 are computed on integers, and mean the same."""

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
from models.engines.unsigned import with_unsigned_activations
from tests.support.models.quantised import quantised, run_on_integers

DIGITS = {"preset": "digits"}
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(8, 1, 32, 32)).astype(np.float32)


def operators(model: bytes, folder: Path) -> list[str]:
    """Return what ONNX Runtime makes of a model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node]


def in_int8(file: Path, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the file's own scores by kernels of int8, which ONNX Runtime by default does not use
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
    file = quantised(
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


def _quantise(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [x, "scale", "zero"], [y], name=y)


def _dequantise(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [x, "scale", "zero"], [y], name=y)


POOL: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}


def _zeros(model: ModelProto) -> dict[str, str]:
    return {
        node.name: node.input[2]
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }


def test_moved_bytes_mean_the_same_to_the_bit() -> None:
    """Also the largest ones of windows that reach beyond the edge."""
    model = _model(
        [
            _quantise("x", "q"),
            helper.make_node("MaxPool", ["q"], ["pooled"], **POOL),
            helper.make_node("Concat", ["pooled", "pooled"], ["both"], axis=1),
            helper.make_node("Reshape", ["both", "shape"], ["flat"]),
            _dequantise("flat", "y"),
        ],
        {"y": TensorProto.FLOAT},
    )
    other = with_unsigned_activations(model)
    assert _zeros(other) == {"q": "zero/unsigned", "y": "zero/unsigned"}
    (zero,) = (t for t in other.graph.initializer if t.name == "zero/unsigned")
    assert numpy_helper.to_array(zero).dtype == np.uint8
    # Beyond both ends of the range, too.
    x = RNG.normal(0, 10, (3, 2, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_on_integers(other, x), run_on_integers(model, x))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([_quantise("x", "q"), _dequantise("q", "y")], {"y": 1, "q": 3}),
        (
            [
                _quantise("x", "q"),
                helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
                _dequantise("q", "z"),
            ],
            {"y": 1, "z": 1},
        ),
        (
            [
                _quantise("x", "q"),
                helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT8),
                helper.make_node("Concat", ["q", "c"], ["both"], axis=1),
                _dequantise("both", "y"),
            ],
            {"y": 1},
        ),
        (
            [
                _quantise("x", "q"),
                helper.make_node("MaxPool", ["q"], ["pooled", "indices"], **POOL),
                _dequantise("pooled", "y"),
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
    assert with_unsigned_activations(model) is model


def test_the_type_that_a_node_says_once_more_goes_with_the_zero_point() -> None:
    model = _model([_quantise("x", "q"), _dequantise("q", "y")], {"y": TensorProto.FLOAT})
    model.opset_import[0].version = 21
    model.ir_version = 10
    model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", TensorProto.INT8))
    other = with_unsigned_activations(model)
    assert _zeros(other) == {"q": "zero/unsigned", "y": "zero/unsigned"}
    x = RNG.normal(size=(2, 2, 4, 4)).astype(np.float32)
    (found,) = ort.InferenceSession(other.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, x, atol=0.03)


def test_what_a_branch_may_read_stays_as_it_is() -> None:
    def branch(name: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([_dequantise("q", name)], name, [], [value])

    kept, dropped = branch("then"), branch("else")
    some = helper.make_node("Constant", [], ["some"], value=numpy_helper.from_array(np.array(True)))
    chosen = helper.make_node("If", ["some"], ["y"], then_branch=kept, else_branch=dropped)
    model = _model([_quantise("x", "q"), some, chosen], {"y": TensorProto.FLOAT})
    assert with_unsigned_activations(model) is model
