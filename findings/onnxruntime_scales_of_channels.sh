#!/usr/bin/env bash
# ONNX Runtime makes an integer convolution of one whose input has a scale a channel, and then cannot run it.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.3.5, on the CPU (x86-64).
#
# QuantizeLinear and DequantizeLinear may have a scale for each channel of an activation; NNCF writes that ahead of
# depthwise layers by default. Where a QuantizeLinear follows such a Conv, the session is made, and its runs fail in
# QLinearConv, which takes one scale. Without optimisation the model runs.
#
# Output seen on 2026-11-27:
#   without optimisation: runs
#   with it: made, but a run fails: QLinearConv
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'onnxruntime==1.31.1' 'onnx==1.23.2' 'numpy==2.3.5'

cat > "$folder/run.py" << 'PYTHON'
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

C = 4
constants = {
    "many": np.linspace(0.01, 0.05, C).astype(np.float32),
    "zeros": np.full(C, 128, np.uint8),
    "w": np.random.default_rng(0).integers(-127, 128, (C, 1, 3, 3)).astype(np.int8),
    "ws": np.full(C, 0.002, np.float32),
    "wz": np.zeros(C, np.int8),
    "s": np.float32(0.05),
    "z": np.uint8(128),
}
nodes = [
    helper.make_node("QuantizeLinear", ["x", "many", "zeros"], ["q"], axis=1),
    helper.make_node("DequantizeLinear", ["q", "many", "zeros"], ["d"], axis=1),
    helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["f"], axis=0),
    helper.make_node("Conv", ["d", "f"], ["c"], group=C, pads=[1] * 4),
    helper.make_node("QuantizeLinear", ["c", "s", "z"], ["yq"]),
    helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
]
shape = [1, C, 8, 8]
graph = helper.make_graph(
    nodes,
    "net",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outcome(level: ort.GraphOptimizationLevel) -> str:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    try:
        session.run(None, {"x": np.ones(shape, np.float32)})
    except Exception as error:
        return "made, but a run fails: " + ("QLinearConv" if "QLinearConv" in str(error) else str(error))
    return "runs"


found = [outcome(level) for level in (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
)]
print("without optimisation:", found[0])
print("with it:", found[1])
sys.exit(0 if found == ["runs", "made, but a run fails: QLinearConv"] else "the behaviour has changed")
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
