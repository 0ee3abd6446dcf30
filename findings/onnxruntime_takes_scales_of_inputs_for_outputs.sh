#!/usr/bin/env bash
# ONNX Runtime 1.31.1: where a quantized filter has one scale per input channel, and as many input
# as output channels, the optimiser takes the scales for those of the output channels.
#
# DequantizeLinear's axis says what the scales belong to. Its default is 1: the input channels of a
# Conv's filter. ONNX Runtime fuses DequantizeLinear and Conv, MatMul or Gemm to QLinearConv,
# QLinearMatMul or QGemm, which know scales of outputs alone, and does not look at the axis. Where
# the numbers of channels differ, the runs of Conv and MatMul fail. Where they are equal, as inside
# of residual blocks, the result is wrong without a word. So an exporter that forgets axis=0 looks
# right in ONNX Runtime, and wrong in a runtime that follows the file.
#
# y = w x, 2 inputs, 2 outputs, x = 1 2, all codes of w are 1, scales of inputs 1 10: y is 21 21.
# Seen here:
#   Conv, axis 1: optimisations off 21 21, by default 3 30
#   MatMul, axis 0: optimisations off 21 21, by default 3 30
#   Gemm, axis 0: optimisations off 21 21, by default 3 30
# Expected: 21 21. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

constants = {
    "x scale": np.float32(0.5),
    "y scale": np.float32(0.25),
    "zero": np.uint8(0),
    "scales": np.array([1, 10], np.float32),
    "zeros": np.zeros(2, np.int8),
}


def numbers(file, level):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    session = ort.InferenceSession(file, options)
    shape = session.get_inputs()[0].shape
    (y,) = session.run(None, {"x": np.array([1, 2], np.float32).reshape(shape)})
    return [float(each) for each in y.ravel()]


def found(op, axis, rank):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "x scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "scales", "zeros"], ["wd"], axis=axis),
        helper.make_node(op, ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y scale", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "y scale", "zero"], ["y"]),
    ]
    w = np.ones([2, 2] + [1] * (rank - 2), np.int8)
    shape = [1, 2] + [1] * (rank - 2)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in {**constants, "w": w}.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    file = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    off = numbers(file, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    default = numbers(file, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    pairs = [" ".join(f"{each:g}" for each in pair) for pair in (off, default)]
    print(f"{op}, axis {axis}: optimisations off {pairs[0]}, by default {pairs[1]}")
    return off, default


for op, axis, rank in (("Conv", 1, 4), ("MatMul", 0, 2), ("Gemm", 0, 2)):
    assert found(op, axis, rank) == ([21, 21], [3, 30]), "the results have changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
