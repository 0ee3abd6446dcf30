"""The layers that are called int8 are counted in the graph that ONNX Runtime runs."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from kernels.problems.precision import Precision
from models import BUILT_IN_MODEL, DeviceKind, load_classifier, open_engine
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.layers import layers_of
from models.rewrite import RULES_OF_INTEGERS, rewrite
from models.served import Layers
from tests.support.models.quantized import quantized, quietly

DIGITS = {"preset": "digits"}
IMAGES = np.random.default_rng(0).normal(size=(8, 1, 32, 32)).astype(np.float32)


def _file(tmp_path: Path, activation: str, *, last: bool = True) -> Path:
    """Write a model of three quantized layers; the activation is between two of them."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "s": np.float32(0.03),
        "z": np.uint8(0),
        "ws": np.float32(0.004),
        "wz": np.int8(0),
        "v": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "w": rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
        "u": rng.integers(-127, 128, (4, 8)).astype(np.int8),
    }

    def quantize(x: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [f"{x}_q"]),
            helper.make_node("DequantizeLinear", [f"{x}_q", "s", "z"], [f"{x}_d"]),
        ]

    nodes = [
        *(helper.make_node("DequantizeLinear", [n, "ws", "wz"], [f"{n}_d"]) for n in "vwu"),
        *quantize("x"),
        helper.make_node("Conv", ["x_d", "v_d"], ["c"], name="first"),
        helper.make_node(activation, ["c"], ["r"], name="between"),
        *quantize("r"),
        helper.make_node("Conv", ["r_d", "w_d"], ["e"], name="second"),
        *quantize("e"),
        helper.make_node("GlobalAveragePool", ["e_d"], ["g"]),
        *quantize("g"),
        helper.make_node("Flatten", ["g_d"], ["f"]),
        helper.make_node("Gemm", ["f", "u_d"], ["y"], name="third", transB=1),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    if not last:  # nothing of it is between two quantizers
        nodes = [each for each in nodes if each.op_type != "QuantizeLinear"]
        for each in nodes:
            for index, name in enumerate(each.input):
                if name in {"x_d", "r_d", "e_d", "g_d"}:
                    each.input[index] = name.removesuffix("_d")
        nodes = [each for each in nodes if each.input[0] not in {"x_q", "r_q", "e_q", "g_q"}]
        tail = [
            helper.make_node("QuantizeLinear", ["y", "s", "z"], ["y_q"]),
            helper.make_node("DequantizeLinear", ["y_q", "s", "z"], ["scores"]),
        ]
        nodes += tail
        scores.name = "scores"
    graph = helper.make_graph(nodes, "net", [image], [scores], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / f"{activation}.onnx"
    onnx.save(model, path)
    return path


def test_layers_that_stay_in_float_are_named(tmp_path: Path) -> None:
    path = _file(tmp_path, "Tanh")
    classifier = load_classifier(path, overrides={"preset": "raw"})
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=2, threads=1)
    assert engine.layers == "2 of 3 layers on integers; in float: first"
    assert engine.precision is Precision.INT8
    engine.close()
    graph = rewrite(classifier.network.graph, RULES_OF_INTEGERS).graph
    # A GPU's kernels multiply bytes only where the result is quantized, too.
    assert str(layers_of(graph)) == "1 of 3 layers on integers; in float: first, third"


def test_a_relu_leaves_both_convolutions_on_integers(tmp_path: Path) -> None:
    classifier = load_classifier(_file(tmp_path, "Relu"), overrides={"preset": "raw"})
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=2, threads=1)
    assert engine.layers == "3 of 3 layers on integers"
    engine.close()


def test_a_model_whose_layers_are_all_in_float_is_none_of_int8(tmp_path: Path) -> None:
    classifier = load_classifier(_file(tmp_path, "Relu", last=False), overrides={"preset": "raw"})
    assert classifier.network.quantized
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=2, threads=1)
    assert engine.layers == "0 of 3 layers on integers; in float: first, second, third"
    assert engine.precision is Precision.FP32
    engine.close()


def test_a_float_model_counts_nothing() -> None:
    engine = open_engine(load_classifier(BUILT_IN_MODEL), device=DeviceKind.CPU, max_batch=1)
    assert engine.layers == ""
    assert engine.precision is Precision.FP32
    engine.close()


def test_layers_whose_scales_depend_on_the_image_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    with quietly():
        quantize_dynamic(BUILT_IN_MODEL, path, weight_type=QuantType.QUInt8)
    classifier = load_classifier(path, overrides=DIGITS)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=1)
    assert engine.layers == "8 of 8 layers on integers"
    engine.close()


def test_engines_beside_or_after_another_count_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantized(BUILT_IN_MODEL, tmp_path / "q.onnx", IMAGES)
    model = SessionModel.of(load_classifier(path, overrides=DIGITS))
    first = OnnxRuntimeEngine(model, max_batch=1, threads=1)
    proved = pickle.loads(pickle.dumps(first.proved(model)))

    def never(*_: object) -> None:
        raise AssertionError("it was counted before")

    monkeypatch.setattr("models.engines.counted.open_counted", never)
    beside = OnnxRuntimeEngine(model, max_batch=1, threads=1, beside=first)
    after = proved.open()
    assert first.layers == beside.layers == after.layers == "8 of 8 layers on integers"
    for engine in (first, beside, after):
        engine.close()


def test_many_names_are_cut_short() -> None:
    layers = Layers(3, tuple(f"layer{number}" for number in range(11)))
    assert str(layers).startswith("3 of 14 layers on integers; in float: layer0, layer1, ")
    assert str(layers).endswith(", layer7 and 3 more")
