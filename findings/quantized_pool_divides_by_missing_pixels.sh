#!/usr/bin/env bash
# ONNX Runtime 1.31.1: a quantized AveragePool that rounds its size up (ceil_mode) and counts its
# padding divides the last window by pixels that neither the image nor the padding has.
#
# With ceil_mode, the last window may reach beyond the padding. ONNX and torch divide it by what is
# there, and so does ONNX Runtime's AveragePool, for old opsets since a repair of July 2026
# (microsoft/onnxruntime#29629). Between a DequantizeLinear and a QuantizeLinear, the optimiser
# makes it a QLinearAveragePool, whose kernel still divides each window by its whole size. So the
# quantized model is right with optimisations off, and wrong as it is served. AvgPool2d(3, 2, 1,
# ceil_mode=True) of torch is such a pool: it counts its padding by default.
#
# Six ones, window 3, stride 2, one pad at each side: the last window has a one, a pad and nothing.
# Scale 0.01, uint8. Seen for opsets 17 and 22:
#   float 0.67 1.00 1.00 0.50
#   quantized, optimisations off 0.67 1.00 1.00 0.50
#   quantized 0.67 1.00 1.00 0.33
#   quantized, padding not counted 1.00 1.00 1.00 1.00
# Expected: 0.50. Nothing is said. Exits with an error if this changes.
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
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ones = np.ones((1, 1, 6), np.float32)


def model(opset, quantized, counted):
    before, after, constants = [], [], []
    if quantized:
        before = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        ]
        after = [
            helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["aq"]),
            helper.make_node("DequantizeLinear", ["aq", "scale", "zero"], ["y"]),
        ]
        constants = [
            numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
            numpy_helper.from_array(np.array(0, np.uint8), "zero"),
        ]
    pool = helper.make_node(
        "AveragePool",
        ["xd" if quantized else "x"],
        ["a" if quantized else "y"],
        kernel_shape=[3],
        strides=[2],
        pads=[1, 1],
        ceil_mode=1,
        count_include_pad=counted,
    )
    graph = helper.make_graph(
        [*before, pool, *after],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ones.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4])],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    checker.check_model(made, full_check=True)
    return made


def text(y):
    return " ".join(f"{each:.2f}" for each in y.ravel())


def run(made, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    session = ort.InferenceSession(made.SerializeToString(), options)
    return text(session.run(None, {"x": ones})[0])


right = "0.67 1.00 1.00 0.50"
for opset in (17, 22):
    plain, quantized = model(opset, False, 1), model(opset, True, 1)
    if opset == 22:
        assert text(ReferenceEvaluator(plain).run(None, {"x": ones})[0]) == right
    found = {
        "float": run(plain),
        "quantized, optimisations off": run(
            quantized, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ),
        "quantized": run(quantized),
        "quantized, padding not counted": run(model(opset, True, 0)),
    }
    seen = [right, right, "0.67 1.00 1.00 0.33", "1.00 1.00 1.00 1.00"]
    assert list(found.values()) == seen, f"this has changed: {found}"
for name, numbers in found.items():
    print(name, numbers)
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
