#!/usr/bin/env bash
# ONNX Runtime 1.31.1 and onnx.reference (onnx 1.23.2): with auto_pad SAME and a window below its
# stride, the same windows begin at a different number in every operator.
#
# SAME pads so that there are ceil(size / stride) windows. If the window is below the stride, this
# takes less than no padding. TensorFlow, from which the mode comes, then pads nothing, so the first
# window begins at the first number. Keras's Conv2D(n, 1, strides=4, padding="same") is one of these.
# ONNX Runtime and the reference compute with the negative padding, each in its own way. Neither
# onnx's checker nor its shape inference objects.
#
# Inputs 1 to 8, window 1 (filter: 1), stride 4. TensorFlow returns 1 5 for all. Seen:
#   Conv        SAME_UPPER: ONNX Runtime 2 6, reference 1 5
#   Conv        SAME_LOWER: ONNX Runtime 1 5, reference 1 5
#   AveragePool SAME_UPPER: ONNX Runtime 2 6, reference: ValueError
#   AveragePool SAME_LOWER: ONNX Runtime 2 6, reference: ValueError
#   MaxPool     SAME_UPPER: ONNX Runtime: RuntimeException, reference 3 7
#   MaxPool     SAME_LOWER: ONNX Runtime: RuntimeException, reference 3 7
# Expected: the same numbers for the same windows. ONNX Runtime's numbers do not depend on its
# optimisations. Exits with an error if this changes.
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
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
ort.set_default_logger_severity(4)


def model_of(operator, auto_pad):
    inputs, filters = ["x"], []
    if operator == "Conv":
        inputs.append("filter")
        filters = [helper.make_tensor("filter", TensorProto.FLOAT, [1, 1, 1], [1.0])]
    node = helper.make_node(
        operator, inputs, ["y"], kernel_shape=[1], strides=[4], auto_pad=auto_pad
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2])],
        filters,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    checker.check_model(model, full_check=True)
    return model


def result(run):
    try:
        (y,) = run(None, {"x": x})
    except Exception as error:
        return f": {type(error).__name__}"
    return " " + " ".join(f"{each:g}" for each in y.ravel())


def results(operator, auto_pad):
    model = model_of(operator, auto_pad)
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    off, default = (
        result(ort.InferenceSession(model.SerializeToString(), options).run)
        for options in (plain, ort.SessionOptions())
    )
    assert off == default
    return default, result(ReferenceEvaluator(model).run)


expected = {
    ("Conv", "SAME_UPPER"): (" 2 6", " 1 5"),
    ("Conv", "SAME_LOWER"): (" 1 5", " 1 5"),
    ("AveragePool", "SAME_UPPER"): (" 2 6", ": ValueError"),
    ("AveragePool", "SAME_LOWER"): (" 2 6", ": ValueError"),
    ("MaxPool", "SAME_UPPER"): (": RuntimeException", " 3 7"),
    ("MaxPool", "SAME_LOWER"): (": RuntimeException", " 3 7"),
}
for (operator, auto_pad), seen in expected.items():
    found = results(operator, auto_pad)
    print(f"{operator:11} {auto_pad}: ONNX Runtime{found[0]}, reference{found[1]}")
    assert found == seen, "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
