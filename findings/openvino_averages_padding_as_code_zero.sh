#!/usr/bin/env bash
# OpenVINO 2026.4.1, on the CPU: in a quantized network, AveragePool with count_include_pad counts
# the padding as the code 0 instead of the number 0.
#
# The two are the same where the zero point is 0. With any other zero point, OpenVINO moves the
# subtraction of the zero point behind the pool (its runtime model shows it there), and pads the
# codes with 0. torch's avg_pool2d counts its padding by default, Inception v3 pools so nine times,
# and int8 with the zero point -128 is what quantize_static of ONNX Runtime writes by default behind
# a Relu. Whoever moves such a quantized network from ONNX Runtime to OpenVINO gets wrong numbers in
# the outer rows and columns of each pool; the inner numbers are right.
#
# All numbers of the image are 0.5; a 3×3 pool with one row of padding. The corner is 4/9 of 0.5,
# the edge 6/9 of it. Nothing is said: no error, no warning. Seen here:
#   uint8, zero point 128: ONNX Runtime 0.22 0.33 0.50, OpenVINO -0.33 0.00 0.50
#   int8, zero point -128: ONNX Runtime 0.22 0.33 0.50, OpenVINO 0.78 0.67 0.50
#   int8, zero point 0: ONNX Runtime 0.22 0.33 0.50, OpenVINO 0.22 0.33 0.50
# Expected: the same numbers in each row. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
import openvino as ov
from onnx import TensorProto, helper, numpy_helper

shape = [1, 1, 8, 8]
x = np.full(shape, 0.5, np.float32)
core = ov.Core()


def line(zero):
    pair = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    ]
    pool = helper.make_node(
        "AveragePool", ["d"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1
    )
    graph = helper.make_graph(
        [*pair, pool],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.asarray(np.float32(1 / 128)), "scale"),
            numpy_helper.from_array(np.asarray(zero), "zero"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    file = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    by_ort = ort.InferenceSession(file).run(None, {"x": x})[0]
    by_ov = core.compile_model(core.read_model(file), "CPU")({"x": x})[0]
    numbers = [" ".join(f"{y[0, 0, i, j]:.2f}" for i, j in ((0, 0), (0, 4), (4, 4))) for y in (by_ort, by_ov)]
    print(f"{zero.dtype}, zero point {zero}: ONNX Runtime {numbers[0]}, OpenVINO {numbers[1]}")
    assert np.abs(by_ort[0, 0, 0, 0] - 4 / 9 / 2) < 0.01, "ONNX Runtime's corner is wrong"
    return np.abs(by_ort - by_ov)[0, 0]


for zero in (np.uint8(128), np.int8(-128)):
    off = line(zero)
    assert off[1:-1, 1:-1].max() < 0.01, "the inner numbers differ, too"
    assert off[0].min() > 0.1, "the padding is the number 0 now"
assert line(np.int8(0)).max() < 0.01, "they differ with the zero point 0"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
