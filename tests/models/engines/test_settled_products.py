"""Convolutions without a quantized output of their own keep their meaning and become faster."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.engines.counted import layers_in
from models.engines.saturation import pairs_saturate
from models.engines.unsigned import on_integers
from models.session import open_session, session_options
from tests.support.models.quantized import run_node_by_node

C, W = 16, 6
RNG = np.random.default_rng(3)
X = RNG.normal(0, 2, (3, C, W, W)).astype(np.float32)


def _residual(size: int, *, bias: str = "b", groups: int = 1) -> ModelProto:
    """Return a block as quantizers for TensorRT write it: convolution, Relu, convolution, and a
    quantized sum with the image. The kernel of the second convolution is size×size."""
    rng = np.random.default_rng(1)
    constants: dict[str, Any] = {
        "step": np.float32(0.03),
        "zero": np.int8(0),
        "v": rng.integers(-127, 128, (C, C, 3, 3)).astype(np.int8),
        "w": rng.integers(-127, 128, (C, C // groups, size, size)).astype(np.int8),
        "s": np.linspace(0.0005, 0.001, C).astype(np.float32),
        "z": np.zeros(C, np.int8),
        "b": rng.normal(size=C).astype(np.float32),
        "bq": rng.integers(-999, 999, C).astype(np.int32),
        "bs": np.linspace(0.0005, 0.001, C).astype(np.float32) * np.float32(0.03),
        "end": np.float32(0.05),
    }

    def node(operator: str, inputs: list[str], output: str, **given: Any) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], name=output, **given)

    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], "xq"),
        node("DequantizeLinear", ["xq", "step", "zero"], "xd"),
        node("DequantizeLinear", ["v", "s", "z"], "vd", axis=0),
        node("Conv", ["xd", "vd"], "first", pads=[1] * 4),
        node("Relu", ["first"], "r"),
        node("QuantizeLinear", ["r", "step", "zero"], "rq"),
        node("DequantizeLinear", ["rq", "step", "zero"], "rd"),
        node("DequantizeLinear", ["w", "s", "z"], "wd", axis=0),
        node("DequantizeLinear", ["bq", "bs"], "bd", axis=0),
        node(
            "Conv",
            ["rd", "wd", bias],
            "second",
            pads=[size // 2] * 4,
            strides=[1, 1],
            group=groups,
        ),
        node("Add", ["second", "xd"], "sum"),
        node("QuantizeLinear", ["sum", "end", "zero"], "yq"),
        node("DequantizeLinear", ["yq", "end", "zero"], "y"),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", C, W, W])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "block", [image], [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _optimised(model: ModelProto, folder: Path) -> ModelProto:
    data = model.SerializeToString()
    options = session_options(data, 1)
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


def _check_codes(served: ModelProto, model: ModelProto) -> None:
    """Check that almost all codes equal those of the file, node by node, and the others differ by
    1."""
    (y,) = open_session(served.SerializeToString(), 1).run(None, {"x": X})
    expected: NDArray[np.float32] = run_node_by_node(model, X)
    assert len(np.unique(expected)) > 40
    steps = np.abs(y - expected) / np.float32(0.05)
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.01


@pytest.mark.parametrize("bias", ["", "b", "bd"], ids=["no bias", "floats", "whole numbers"])
@pytest.mark.parametrize("saturate", [False, True], ids=["exact pairs", "pairs that saturate"])
def test_a_pointwise_convolution_ahead_of_a_sum_is_a_product_of_bytes(
    bias: str, saturate: bool, tmp_path: Path
) -> None:
    model = _residual(1, bias=bias)
    served = on_integers(model, pairs_saturate=saturate or pairs_saturate())
    layers = layers_in(_optimised(served, tmp_path), lambda: served)
    assert (layers.on_integers, layers.in_float) == (2, ())
    _check_codes(served, model)


def test_a_product_of_bytes_is_exact_where_pairs_saturate() -> None:
    """The image's own codes exceed 127, so the filter must be uint8."""
    model = _residual(1)
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Identity"
    served = on_integers(model, pairs_saturate=True)
    (product,) = (node for node in served.graph.node if node.op_type == "MatMulIntegerToFloat")
    (filter_,) = (t for t in served.graph.initializer if t.name == product.input[1])
    assert filter_.data_type == TensorProto.UINT8
    _check_codes(served, model)


@pytest.mark.parametrize(
    ("size", "groups"),
    [(3, 1), (3, C), (1, 4)],
    ids=["3×3 of few filters", "depthwise", "groups"],
)
def test_the_filter_of_any_other_is_constant_floats(size: int, groups: int, tmp_path: Path) -> None:
    model = _residual(size, bias="bd", groups=groups)
    served = on_integers(model, pairs_saturate=pairs_saturate())
    optimised = _optimised(served, tmp_path)
    assert layers_in(optimised, lambda: served).in_float == ("second",)
    weights = {tensor.name for tensor in optimised.graph.initializer}
    kept = [node for node in optimised.graph.node if node.op_type == "DequantizeLinear"]
    assert weights.isdisjoint(node.input[0] for node in kept)
    _check_codes(served, model)


WINDOWS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "3×3": ((3, 3), {"pads": [1, 1, 1, 1]}),
    "3×3, every second": ((3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "3×3, apart": ((3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "1×3": ((1, 3), {"pads": [0, 0, 0, 2], "strides": [2, 1]}),
    "2×2": ((2, 2), {"pads": [1, 0, 0, 1]}),
    "1×1, every second": ((1, 1), {"strides": [2, 2]}),
    "1×1, padded": ((1, 1), {"pads": [1, 1, 1, 1]}),
    "inside": ((3, 2), {}),
}


@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("name", WINDOWS)
def test_the_bytes_of_windows_are_laid_out_side_by_side(name: str, zero: int) -> None:
    """Build a layer of many filters, whose scores are not quantized."""
    window, given = WINDOWS[name]
    rng = np.random.default_rng(4)
    filters = 64
    constants: dict[str, Any] = {
        "step": np.float32(0.03),
        "zero": np.uint8(zero),
        "w": rng.integers(-127, 128, (filters, C, *window)).astype(np.int8),
        "s": np.linspace(0.0005, 0.001, filters).astype(np.float32),
        "z": np.zeros(filters, np.int8),
        "b": rng.normal(size=filters).astype(np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "step", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "b"], ["y"], name="layer", **given),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", C, W, W])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(a), key) for key, a in constants.items()]
    graph = helper.make_graph(nodes, "layer", [image], [result], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    served = on_integers(model, pairs_saturate=True)
    assert "Conv" not in {node.op_type for node in served.graph.node}
    (y,) = open_session(served.SerializeToString(), 1).run(None, {"x": X})
    expected = run_node_by_node(model, X)
    assert y.shape == expected.shape
    # Sums of whole numbers are exact, and are rounded in another order.
    assert np.abs(y - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_value_that_is_read_from_outside_stays() -> None:
    served = on_integers(_residual(1), kept=["rd", "r"])
    made = {name for node in served.graph.node for name in node.output}
    assert {"rd", "r"} <= made
    assert "rd" not in {
        name for node in on_integers(_residual(1)).graph.node for name in node.output
    }


def _between(operator: str, **constants: Any) -> ModelProto:
    """Return a layer between quantizers, with a float filter and a float bias by default."""
    rng = np.random.default_rng(2)
    filters: dict[str, Any] = {
        "w": rng.normal(size=(C, C, *[3, 3][: 2 if operator == "Conv" else 0])),
        "b": rng.normal(size=C),
    }
    given: dict[str, Any] = {
        "step": np.float32(0.05),
        "zero": np.uint8(128),
        "end": np.float32(0.2),
        **{name: array.astype(np.float32) for name, array in filters.items()},
        **constants,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "step", "zero"], ["xd"]),
        helper.make_node(operator, ["xd", "w", "b"], ["c"], name="layer"),
        helper.make_node("QuantizeLinear", ["c", "end", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "end", "zero"], ["y"]),
    ]
    if "wq" in given:
        del given["w"]
        given["wz"] = np.zeros(np.shape(given["ws"]), np.int8)
        nodes.insert(2, helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0))
    shape: list[int | str] = ["N", C, W, W] if operator == "Conv" else ["N", C]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in given.items()]
    graph = helper.make_graph(nodes, "layer", [image], [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("operator", ["Conv", "Gemm"])
def test_a_filter_that_the_file_has_in_float_stays_in_float(operator: str) -> None:
    """ONNX Runtime would quantize it, and change its layer's results by many steps."""
    model = _between(operator)
    served = on_integers(model, pairs_saturate=pairs_saturate())
    x = X if operator == "Conv" else X.reshape(-1, C)
    (y,) = open_session(served.SerializeToString(), 1).run(None, {"x": x})
    expected = run_node_by_node(model, x)
    assert len(np.unique(expected)) > 40
    assert (np.abs(y - expected) > 0.1).mean() < 0.001


@pytest.mark.parametrize("operator", ["Conv", "Gemm"])
@pytest.mark.parametrize(("bias", "integers"), [(3.0, 1), (1e9, 0)], ids=["usual", "huge"])
def test_a_float_bias_becomes_whole_numbers_if_32_bits_hold_it(
    operator: str, bias: float, integers: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    shape = (C, C, 3, 3) if operator == "Conv" else (C, C)
    scale = np.linspace(0.002, 0.004, C) if operator == "Conv" else np.float32(0.003)
    model = _between(
        operator,
        wq=rng.integers(-60, 61, shape).astype(np.int8),
        ws=scale.astype(np.float32),
        b=rng.normal(0, bias, C).astype(np.float32),
    )
    if operator == "Gemm":
        model.graph.node[3].attribute.append(helper.make_attribute("transB", 1))
    served = on_integers(model, pairs_saturate=pairs_saturate())
    assert layers_in(_optimised(served, tmp_path), lambda: served).on_integers == integers
    x = X if operator == "Conv" else X.reshape(-1, C)
    (y,) = open_session(served.SerializeToString(), 1).run(None, {"x": x})
    steps = np.abs(y - run_node_by_node(model, x)) / np.float32(0.2)
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.01
