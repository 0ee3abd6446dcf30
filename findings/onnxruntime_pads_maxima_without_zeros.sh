#!/usr/bin/env bash
# ONNX Runtime's optimiser drops the zeros that a Pad puts around an image from the maxima of a MaxPool.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.3.5, on the CPU.
#
# Pad with zeros, then MaxPool, is expected to give at least 0 wherever a window reaches into the border. Pad_Fusion, on
# by default, makes the pads an attribute of the MaxPool, whose own padding counts as minus infinity: where all numbers
# in the window are below 0, the largest of them comes out. Keras' ResNet50V2 has the two nodes in front of numbers of
# either sign. Without Pad_Fusion, or without optimisations, the result is right.
#
# Output seen on 2026-11-28:
#   without optimisations: [0.0, 0.0]
#   without Pad_Fusion: [0.0, 0.0]
#   by default: [-1.0, -1.0]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'onnxruntime==1.31.1' 'onnx==1.23.2' 'numpy==2.3.5'

cat > "$folder/maxima.py" << 'PYTHON'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, checker, helper, numpy_helper

nodes = [
    helper.make_node("Pad", ["x", "pads", "zero"], ["padded"]),
    helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
]
constants = {"pads": np.array([0, 0, 1, 0, 0, 0, 0, 0]), "zero": np.float32(0)}
graph = helper.make_graph(
    nodes,
    "maxima",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 2])],
    [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
checker.check_model(model, full_check=True)
x = np.array([-1, -2, -1, -3], np.float32).reshape(1, 1, 1, 4)


def run(options: ort.SessionOptions) -> list[float]:
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0].ravel().tolist()


plain, unfused = ort.SessionOptions(), ort.SessionOptions()
plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
unfused.add_session_config_entry("optimization.disable_specified_optimizers", "Pad_Fusion")
found = {
    "without optimisations": run(plain),
    "without Pad_Fusion": run(unfused),
    "by default": run(ort.SessionOptions()),
}
for how, numbers in found.items():
    print(f"{how}: {numbers}")
assert found == {
    "without optimisations": [0.0, 0.0],
    "without Pad_Fusion": [0.0, 0.0],
    "by default": [-1.0, -1.0],
}, "the behaviour has changed"
PYTHON

"$folder/venv/bin/python" "$folder/maxima.py"
