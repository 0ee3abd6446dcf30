#!/usr/bin/env bash
# onnxruntime 1.31.1: quantize_static writes a valid int8 model of opset 21 that InferenceSession of
# the same package cannot open: two of its optimisations contradict each other.
#
# A Conv whose result is reshaped, as in the heads of detectors. If only the Conv is quantized, the
# file ends in QuantizeLinear, DequantizeLinear, Reshape. QDQPropagationTransformer adds a quantizer
# after the Reshape, and from opset 21 on states its output_dtype, INT8. QDQS8ToU8Transformer then
# makes all zero points uint8, and forgets that attribute. With uint8, or an older opset, or without
# either optimisation, the session opens. The error names a node that is not in the file.
#
# Seen on x86-64:
#   opset 20, int8: opens
#   opset 21, uint8: opens
#   opset 21, int8: output_dtype INT8 does not match y_zero_point type UINT8.
#   opset 21, int8, without QDQPropagationTransformer: opens
#   opset 21, int8, without QDQS8ToU8Transformer: opens
# Expected: opens. Exits with an error if this changes.
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
from onnx import TensorProto, checker, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

logging.disable(logging.WARNING)
image = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4)


class One(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": image}]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantize(opset, activations):
    weights = np.full((1, 1, 3, 3), 0.1, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Reshape", ["c", "shape"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.array([1, 4]), "shape"),
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "float.onnx")
    quantize_static(
        "float.onnx",
        "quantized.onnx",
        One(),
        op_types_to_quantize=["Conv"],
        activation_type=activations,
        weight_type=QuantType.QInt8,
    )
    checker.check_model("quantized.onnx", full_check=True)


def opened(disabled):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if disabled:
        options.add_session_config_entry("optimization.disable_specified_optimizers", disabled)
    try:
        ort.InferenceSession("quantized.onnx", options)
    except Exception as error:
        return str(error).rpartition("] ")[2].strip()
    return "opens"


refusal = "output_dtype INT8 does not match y_zero_point type UINT8."
for opset, activations, disabled, expected in (
    (20, QuantType.QInt8, "", "opens"),
    (21, QuantType.QUInt8, "", "opens"),
    (21, QuantType.QInt8, "", refusal),
    (21, QuantType.QInt8, "QDQPropagationTransformer", "opens"),
    (21, QuantType.QInt8, "QDQS8ToU8Transformer", "opens"),
):
    quantize(opset, activations)
    found = opened(disabled)
    kind = "int8" if activations == QuantType.QInt8 else "uint8"
    print(f"opset {opset}, {kind}{', without ' if disabled else ''}{disabled}: {found}")
    assert found == expected, "this has changed"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/run.py"
