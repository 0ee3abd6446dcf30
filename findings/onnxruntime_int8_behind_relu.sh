#!/usr/bin/env bash
# ONNX Runtime computes a quantized convolution behind a Relu in float unless the zero point is the lowest code.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2, numpy 2.3.5, on the CPU (x86-64).
#
# A QDQ model Conv, Relu, QuantizeLinear, DequantizeLinear, Conv, ... is expected to become QLinearConv nodes. It does
# where Relu's 0 is the lowest code, uint8 with zero point 0 or int8 with -128: Relu is dropped then. With int8 and
# zero point 0, as quantizers for TensorRT write it (nvidia-modelopt), or uint8 and 128, nothing drops Relu, and each
# convolution stays a float one between DequantizeLinear and QuantizeLinear, which is slower than the float model.
# uint8 with zero point 0 and a Min with 127 behind the QuantizeLinear has the same numbers as int8 with 0, and becomes
# QLinearConv.
#
# Output seen on 2026-11-27:
#   uint8 0: 2 QLinearConv, 0 in float
#   int8 -128: 2 QLinearConv, 0 in float
#   int8 0: 0 QLinearConv, 2 in float
#   uint8 128: 0 QLinearConv, 2 in float
#   uint8 0 and Min with 127: 2 QLinearConv, 0 in float
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'onnxruntime==1.31.1' 'onnx==1.23.2' 'numpy==2.3.5'

cat > "$folder/count.py" << 'PYTHON'
import sys
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

folder = sys.argv[1]
rng = np.random.default_rng(0)


def model(zero: np.generic, bound: bool) -> onnx.ModelProto:
    constants = {
        "s": np.float32(0.05),
        "z": zero,
        "iz": np.uint8(128),
        "ws": np.float32(0.002),
        "wz": np.int8(0),
        "most": np.uint8(127),
    }
    nodes, x, zero_point = [], "x", "iz"
    for layer in range(2):
        constants[f"w{layer}"] = rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
        if layer == 0:
            nodes += [helper.make_node("QuantizeLinear", [x, "s", "iz"], ["xq"])]
            x = "xq"
        q = f"q{layer}"
        nodes += [
            helper.make_node("DequantizeLinear", [x, "s", zero_point], [f"d{layer}"]),
            helper.make_node("DequantizeLinear", [f"w{layer}", "ws", "wz"], [f"f{layer}"]),
            helper.make_node("Conv", [f"d{layer}", f"f{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]),
            helper.make_node("QuantizeLinear", [f"r{layer}", "s", "z"], [q]),
        ]
        x, zero_point = q, "z"
        if bound:
            nodes += [helper.make_node("Min", [q, "most"], [f"m{layer}"])]
            x = f"m{layer}"
    nodes += [helper.make_node("DequantizeLinear", [x, "s", "z"], ["y"])]
    used = {name for node in nodes for name in node.input}
    shape = [1, 8, 16, 16]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


expected = {
    "uint8 0": (np.uint8(0), False, 2),
    "int8 -128": (np.int8(-128), False, 2),
    "int8 0": (np.int8(0), False, 0),
    "uint8 128": (np.uint8(128), False, 0),
    "uint8 0 and Min with 127": (np.uint8(0), True, 2),
}
same = True
for name, (zero, bound, count) in expected.items():
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = f"{folder}/optimised.onnx"
    ort.InferenceSession(
        model(zero, bound).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found = Counter(n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node)
    floats = found["Conv"] + found["FusedConv"]
    print(f"{name}: {found['QLinearConv']} QLinearConv, {floats} in float")
    same &= (found["QLinearConv"], floats) == (count, 2 - count)
sys.exit(0 if same else "the behaviour has changed")
PYTHON
"$folder/venv/bin/python" "$folder/count.py" "$folder"
