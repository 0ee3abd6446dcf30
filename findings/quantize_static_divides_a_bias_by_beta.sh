#!/usr/bin/env bash
# onnxruntime 1.31.1: quantize_static loses Gemm's beta, by which ONNX multiplies the bias. The bias
# of the new file is the whole one; run by ONNX Runtime, it is divided by beta.
#
# The quantizer multiplies the scale of the int32 bias by beta, divides the bias by that scale, and
# takes beta away: the two beta cancel out, so that the QDQ file says beta = 1. A QGemm has no scale
# for its bias, and its kernel takes that of input times filter: once more wrong by beta. ONNX
# Runtime makes a QGemm of the QDQ file, too, unless its optimisations are off. So one float model
# has three results, and a QDQ file that is checked without optimisations differs from what is
# served. torch.onnx.export(dynamo=False) writes such a Gemm for torch.addmm(bias, x, w, beta=...).
#
# An identity of 4 by 4 with bias 2 and beta 0.5, of the input 0. Nothing is said: no error, no
# warning. Seen here:
#   float 1.0
#   QDQ, optimisations off 2.0
#   QDQ 4.0
#   QOperator 4.0
# Expected: about 1.0 four times. Exits with an error if this changes.
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
graph = helper.make_graph(
    [helper.make_node("Gemm", ["x", "w", "b"], ["y"], beta=0.5)],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    [
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
        numpy_helper.from_array(np.full(4, 2, np.float32), "b"),
    ],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, "float.onnx")


class Range(CalibrationDataReader):
    left = None

    def get_next(self):
        if self.left is None:
            self.left = [{"x": np.full((2, 4), each, np.float32)} for each in (-5, 5)]
        return self.left.pop() if self.left else None


def result(path, off=False):
    options = ort.SessionOptions()
    if off:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = ort.InferenceSession(path, options).run(None, {"x": np.zeros((2, 4), np.float32)})
    return round(float(y[0, 0]), 1)


for quant_format in (QuantFormat.QDQ, QuantFormat.QOperator):
    quantize_static("float.onnx", f"{quant_format.name}.onnx", Range(), quant_format=quant_format)
found = {
    "float": result("float.onnx"),
    "QDQ, optimisations off": result("QDQ.onnx", off=True),
    "QDQ": result("QDQ.onnx"),
    "QOperator": result("QOperator.onnx"),
}
for name, number in found.items():
    print(name, number)
assert list(found.values()) == [1, 2, 4, 4], "the results have changed"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/run.py"
