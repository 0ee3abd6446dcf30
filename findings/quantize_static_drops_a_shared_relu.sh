#!/usr/bin/env bash
# onnxruntime 1.31.1: with quant_format=QOperator, quantize_static leaves a Relu or Clip out whose
# input has a second consumer, and nothing takes its place.
#
# A quantizer may leave out a Relu behind a Conv, because the codes of the Conv can end at 0. So the
# Conv must get the range of the Relu's result. quantize_static gives it that range if the Relu is
# its only consumer, and else its own range. With QDQ, the default, the Relu stays then. With
# QOperator it is left out in both cases: what read the Relu reads the Conv, negative numbers and
# all. Blocks that add, concatenate or multiply x and a bounded x (CReLU, some gates) are concerned.
#
# x = -4 -1 0 2 4, which is also the calibration; Conv by 1. Seen:
#   Concat of x and Relu(x): QDQ -4 -1 0 2 4 0 0 0 2 4, QOperator -4 -1 0 2 4 -4 -1 0 2 4
#   x + Relu(x): QDQ -4 -1 0 4 8, QOperator -4 -2 0 4 8
#   x * Clip(x, 0, 6): QDQ 0 0 0 4 16, QOperator 16 1 0 4 16
#   Relu(x) alone: QDQ 0 0 0 2 4, QOperator 0 0 0 2 4
# The QDQ numbers are those of the float model. They do not depend on optimisations. Nothing is
# said of the Relu. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import logging

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

logging.disable(logging.WARNING)
x = np.array([-4, -1, 0, 2, 4], np.float32).reshape(1, 1, 1, 5)


class One(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": x}]

    def get_next(self):
        return self.left.pop() if self.left else None


def run(path):
    found = set()
    for level in (
        ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        (y,) = ort.InferenceSession(path, options).run(None, {"x": x})
        found.add(" ".join(f"{each:.0f}" for each in y.ravel() + 0.01))
    (numbers,) = found
    return numbers


def outcome(*nodes):
    constants = {"w": np.ones((1, 1, 1, 1)), "low": np.array(0), "high": np.array(6)}
    used = {name for node in nodes for name in node.input} | {"w"}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, None])],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in constants.items()
            if name in used
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "float.onnx")
    numbers = [run("float.onnx")]
    for quant_format in (QuantFormat.QDQ, QuantFormat.QOperator):
        quantize_static("float.onnx", "quantized.onnx", One(), quant_format=quant_format)
        onnx.checker.check_model("quantized.onnx")
        numbers.append(run("quantized.onnx"))
    return numbers


relu = helper.make_node("Relu", ["c"], ["r"])
clip = helper.make_node("Clip", ["c", "low", "high"], ["r"])
blocks = {
    "Concat of x and Relu(x)": (relu, helper.make_node("Concat", ["c", "r"], ["y"], axis=3)),
    "x + Relu(x)": (relu, helper.make_node("Add", ["c", "r"], ["y"])),
    "x * Clip(x, 0, 6)": (clip, helper.make_node("Mul", ["c", "r"], ["y"])),
    "Relu(x) alone": (helper.make_node("Relu", ["c"], ["y"]),),
}
seen = {
    "Concat of x and Relu(x)": "-4 -1 0 2 4 -4 -1 0 2 4",
    "x + Relu(x)": "-4 -2 0 4 8",
    "x * Clip(x, 0, 6)": "16 1 0 4 16",
    "Relu(x) alone": "0 0 0 2 4",
}
for name, nodes in blocks.items():
    right, qdq, qoperator = outcome(*nodes)
    print(f"{name}: QDQ {qdq}, QOperator {qoperator}")
    assert qdq == right, "the QDQ model is wrong"
    assert qoperator == seen[name], "this has changed"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/run.py"
