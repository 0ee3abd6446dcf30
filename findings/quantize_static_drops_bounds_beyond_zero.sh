#!/usr/bin/env bash
# onnxruntime 1.31.1: quantize_static leaves a Clip out whose bound lies on the other side of 0 than
# what it keeps. Afterwards nothing bounds the numbers but 0.
#
# Relu and Clip are left out by default if they follow something quantized: the codes of what comes
# before get the range of the Clip's result, and end where the Clip would end. But a range has to
# contain 0, so quantize_static widens that of Clip(1, 6) to 0 to 6. The file then has 0 where the
# float model has 1. Such a bound is what keeps a divisor away from 0, clamp(min=...) in torch.
#
# x = -4 0.5 2 4, which is also the calibration; Conv by 1, then Clip. Seen:
#   Clip 0 to 6: float 0.0 0.5 2.0 4.0, QDQ 0.0 0.5 2.0 4.0, QOperator 0.0 0.5 2.0 4.0
#   Clip 1 to 6: float 1.0 1.0 2.0 4.0, QDQ 0.0 0.5 2.0 4.0, QOperator 0.0 0.5 2.0 4.0
#   Clip -6 to -1: float -4.0 -1.0 -1.0 -1.0, QDQ -4.0 0.0 0.0 0.0, QOperator -4.0 0.0 0.0 0.0
#   Clip 1 to 6, kept: float 1.0 1.0 2.0 4.0, QDQ 1.0 1.0 2.0 4.0
# The last line has QDQKeepRemovableActivations, an option for QDQ. Expected: the float numbers.
# Nothing is said of the Clip. Exits with an error if this changes.
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
x = np.array([-4, 0.5, 2, 4], np.float32).reshape(1, 1, 1, 4)


class One(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": x}]

    def get_next(self):
        return self.left.pop() if self.left else None


def run(path):
    (y,) = ort.InferenceSession(path).run(None, {"x": x})
    return " ".join(f"{each:.1f}" for each in y.ravel())


def save(low, high):
    constants = {"w": np.ones((1, 1, 1, 1)), "low": np.array(low), "high": np.array(high)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Clip", ["c", "low", "high"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "float.onnx")
    return run("float.onnx")


def quantized(quant_format, **options):
    quantize_static(
        "float.onnx", "quantized.onnx", One(), quant_format=quant_format, extra_options=options
    )
    nodes = onnx.load("quantized.onnx").graph.node
    assert any(node.op_type == "Clip" for node in nodes) is bool(options), "this has changed"
    return run("quantized.onnx")


for low, high, expected in (
    (0, 6, "0.0 0.5 2.0 4.0"),
    (1, 6, "0.0 0.5 2.0 4.0"),
    (-6, -1, "-4.0 0.0 0.0 0.0"),
):
    right = save(low, high)
    found = [quantized(each) for each in (QuantFormat.QDQ, QuantFormat.QOperator)]
    print("Clip {} to {}: float {}, QDQ {}, QOperator {}".format(low, high, right, *found))
    assert found == [expected, expected], "this has changed"
    assert (right == expected) is (low == 0)
right = save(1, 6)
kept = quantized(QuantFormat.QDQ, QDQKeepRemovableActivations=True)
print(f"Clip 1 to 6, kept: float {right}, QDQ {kept}")
assert kept == right, "the kept Clip is wrong"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/run.py"
